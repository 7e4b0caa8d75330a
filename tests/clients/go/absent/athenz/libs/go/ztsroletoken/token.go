// Package ztsroletoken has the names of Athenz that Pulsar's client uses, and no Athenz: tests have none.
package ztsroletoken

import (
	"errors"
	"time"

	"github.com/AthenZ/athenz/libs/go/zmssvctoken"
)

var errAbsent = errors.New("this client was compiled without Athenz")

type RoleToken interface {
	RoleTokenValue() (string, error)
	StartPrefetcher() error
	StopPrefetcher() error
}

type RoleTokenOptions struct {
	BaseZTSURL, ProxyURL, Role, AuthHeader string
	MinExpire, MaxExpire, PrefetchInterval time.Duration
	CACert                                 []byte
}

type absent struct{}

func (absent) RoleTokenValue() (string, error) { return "", errAbsent }
func (absent) StartPrefetcher() error          { return errAbsent }
func (absent) StopPrefetcher() error           { return errAbsent }

func NewRoleToken(zmssvctoken.Token, string, RoleTokenOptions) RoleToken      { return absent{} }
func NewRoleTokenFromCert(string, string, string, RoleTokenOptions) RoleToken { return absent{} }
