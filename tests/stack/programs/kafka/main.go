// A Kafka broker in memory, for the tests of the Kafka variant: it listens on the port that its argument names, keeps the
// topic of the second argument until it is ended.
package main

import (
	"log"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatalf("the port %q is no number: %v", os.Args[1], err)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(port),
		kfake.SeedTopics(4, os.Args[2]),
	)
	if err != nil {
		log.Fatalf("the broker does not start: %v", err)
	}
	log.Printf("listening on %v", cluster.ListenAddrs())
	select {}
}
