// Package zmssvctoken has the names of Athenz that Pulsar's client uses, and no Athenz: tests have none.
package zmssvctoken

import (
	"errors"
	"time"
)

type Token interface{ Value() (string, error) }

type TokenBuilder interface {
	SetExpiration(time.Duration)
	SetHostname(string)
	SetIPAddress(string)
	SetKeyService(string)
	Token() Token
}

func NewTokenBuilder(string, string, []byte, string) (TokenBuilder, error) {
	return nil, errors.New("this client was compiled without Athenz")
}
