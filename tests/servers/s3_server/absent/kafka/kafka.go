// Package kafka has the names of a Kafka client that versitygw uses, and no client: tests have no Kafka.
package kafka

import (
	"context"
	"errors"
	"time"
)

type (
	LeastBytes   struct{}
	Message      struct{ Key, Value []byte }
	Writer       struct{}
	WriterConfig struct {
		Brokers      []string
		Topic        string
		Balancer     *LeastBytes
		BatchTimeout time.Duration
	}
)

func NewWriter(WriterConfig) *Writer { return &Writer{} }
func (*Writer) Close() error         { return nil }
func (*Writer) WriteMessages(context.Context, ...Message) error {
	return errors.New("this server was compiled without a client of Kafka")
}
