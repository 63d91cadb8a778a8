package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

// reviews posts one body again and again over a few connections, as an API server does: HTTP/1.1,
// a connection for each request that is in flight.
func reviews(arguments []string) error {
	flags := flag.NewFlagSet("reviews", flag.ExitOnError)
	cert := flags.String("cert", "", "PEM certificate")
	key := flags.String("key", "", "PEM key")
	ca := flags.String("ca", "", "PEM of the server's CA")
	url := flags.String("url", "", "where to")
	file := flags.String("body", "", "what")
	count := flags.Int64("count", 1000, "requests at each line of standard input")
	connections := flags.Int("connections", 8, "requests in flight")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	body, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return err
	}
	roots, err := pool(*ca)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots},
		MaxIdleConnsPerHost: *connections,
	}}
	say(map[string]any{"event": "ready"})
	line := make([]byte, 64)
	for {
		if _, err := os.Stdin.Read(line); err != nil {
			return nil // whoever asks is gone
		}
		if err := burst(client, *url, body, *count, *connections); err != nil {
			return err
		}
		say(map[string]any{"event": "done"})
	}
}

func burst(client *http.Client, url string, body []byte, count int64, connections int) error {
	var left atomic.Int64
	left.Store(count)
	failures := make(chan error, connections)
	var all sync.WaitGroup
	for range connections {
		all.Add(1)
		go func() {
			defer all.Done()
			for left.Add(-1) >= 0 {
				if err := post(client, url, body); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	all.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func post(client *http.Client, url string, body []byte) error {
	answer, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
