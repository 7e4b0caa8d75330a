// Package config has the names of the AWS SDK's configuration that versitygw uses for users in another S3.
package config

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
)

type LoadOptions struct{}
type option = func(*LoadOptions) error

func WithRegion(string) option                               { return nil }
func WithCredentialsProvider(aws.CredentialsProvider) option { return nil }
func WithHTTPClient(any) option                              { return nil }
func WithClientLogMode(aws.ClientLogMode) option             { return nil }
func LoadDefaultConfig(context.Context, ...option) (aws.Config, error) {
	return aws.Config{}, errors.New("this server was compiled without users in another S3")
}
