// Package vault has the names of HashiCorp's client that versitygw uses, and no client: tests have no Vault.
package vault

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/vault-client-go/schema"
)

var errAbsent = errors.New("this server was compiled without a client of Vault")

type (
	Client struct {
		Auth    Auth
		Secrets Secrets
	}
	Auth               struct{}
	Secrets            struct{}
	ClientOption       func()
	RequestOption      func()
	Certificate        struct{ FromBytes []byte }
	TLSConfiguration   struct{ ServerCertificate, ClientCertificate, ClientCertificateKey Certificate }
	ResponseAuth       struct{ ClientToken string }
	Response[Data any] struct {
		Data Data
		Auth *ResponseAuth
	}
	values = map[string]any
)

func New(...ClientOption) (*Client, error)          { return nil, errAbsent }
func (*Client) SetToken(string) error               { return errAbsent }
func WithAddress(string) ClientOption               { return nil }
func WithRequestTimeout(time.Duration) ClientOption { return nil }
func WithTLS(TLSConfiguration) ClientOption         { return nil }
func WithMountPath(string) RequestOption            { return nil }
func WithNamespace(string) RequestOption            { return nil }
func IsErrorStatus(error, int) bool                 { return false }

func (Auth) AppRoleLogin(context.Context, schema.AppRoleLoginRequest, ...RequestOption) (*Response[values], error) {
	return nil, errAbsent
}

func (Secrets) KvV2Read(context.Context, string, ...RequestOption) (*Response[schema.KvV2ReadResponse], error) {
	return nil, errAbsent
}

func (Secrets) KvV2List(context.Context, string, ...RequestOption) (*Response[schema.StandardListResponse], error) {
	return nil, errAbsent
}

func (Secrets) KvV2Write(context.Context, string, schema.KvV2WriteRequest, ...RequestOption) (*Response[values], error) {
	return nil, errAbsent
}

func (Secrets) KvV2WriteMetadata(context.Context, string, schema.KvV2WriteMetadataRequest, ...RequestOption) (*Response[values], error) {
	return nil, errAbsent
}

func (Secrets) KvV2DeleteMetadataAndAllVersions(context.Context, string, ...RequestOption) (*Response[values], error) {
	return nil, errAbsent
}
