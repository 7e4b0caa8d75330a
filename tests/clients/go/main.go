// Pulsar's Go client, for test_go_client.py: `produce URL TOPIC COUNT KEYS` sends numbers in batches, COUNT of them by
// KEYS keys; `read URL TOPIC` and `read-compacted URL TOPIC` print what a reader has, a line `key value ledger entry index`
// each, with the size of a value of more than 1,024 bytes instead of the value; `consume URL TOPIC COUNT` receives and acknowledges that many.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(message pulsar.Message) {
	id := message.ID()
	value := string(message.Payload())
	if len(value) > 1024 {
		value = strconv.Itoa(len(value))
	}
	fmt.Println(message.Key(), value, id.LedgerID(), id.EntryID(), id.BatchIdx())
}

func main() {
	quiet := logrus.New()
	quiet.SetLevel(logrus.ErrorLevel)
	command, url, topic := os.Args[1], os.Args[2], os.Args[3]
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(quiet)})
	check(err)
	defer client.Close()
	limited, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch command {
	case "produce":
		count, err := strconv.Atoi(os.Args[4])
		check(err)
		keys, err := strconv.Atoi(os.Args[5])
		check(err)
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, CompressionType: pulsar.LZ4})
		check(err)
		for number := 0; number < count; number++ {
			message := &pulsar.ProducerMessage{
				Key:     fmt.Sprintf("k%d", number%keys),
				Payload: []byte(strconv.Itoa(number)),
			}
			producer.SendAsync(limited, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
		}
		check(producer.FlushWithCtx(limited))
		producer.Close()
	case "read", "read-compacted":
		reader, err := client.CreateReader(pulsar.ReaderOptions{
			Topic:          topic,
			StartMessageID: pulsar.EarliestMessageID(),
			ReadCompacted:  command == "read-compacted",
		})
		check(err)
		for reader.HasNext() {
			message, err := reader.Next(limited)
			check(err)
			show(message)
		}
		reader.Close()
	case "consume":
		count, err := strconv.Atoi(os.Args[4])
		check(err)
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic:                       topic,
			SubscriptionName:            "go",
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			AckWithResponse:             true,
		})
		check(err)
		for number := 0; number < count; number++ {
			message, err := consumer.Receive(limited)
			check(err)
			show(message)
			check(consumer.Ack(message))
		}
		consumer.Close()
	default:
		fmt.Fprintln(os.Stderr, "no command", command)
		os.Exit(2)
	}
}
