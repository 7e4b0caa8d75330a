// Package amqp091 has the names of a RabbitMQ client that versitygw uses, and no client: tests have no RabbitMQ.
package amqp091

import (
	"errors"
	"time"
)

var errAbsent = errors.New("this server was compiled without a client of RabbitMQ")

type (
	Connection struct{}
	Channel    struct{}
	Publishing struct {
		Timestamp   time.Time
		ContentType string
		Body        []byte
		MessageId   string
	}
)

func Dial(string) (*Connection, error)                                { return nil, errAbsent }
func (*Connection) Channel() (*Channel, error)                        { return nil, errAbsent }
func (*Connection) Close() error                                      { return nil }
func (*Channel) Close() error                                         { return nil }
func (*Channel) Publish(string, string, bool, bool, Publishing) error { return errAbsent }
