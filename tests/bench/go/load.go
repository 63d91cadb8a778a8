package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Agents as far as a controller can tell: an SVID each, signed evidence for every challenge, and
// the real agent's back-off. They do not check the controller's signature: what they cost is not
// what is measured.

type generator struct {
	address string
	hello   string
	text    string
	ca      *x509.Certificate
	caKey   *ecdsa.PrivateKey
	domain  string
	gate    chan struct{} // handshakes at a time

	mu        sync.Mutex
	open      int
	accepted  int
	opened    int
	nodes     map[int]bool // accepted since the last report line
	codes     map[string]int
	latencies []float64
}

type agent struct {
	*generator
	number   int
	name     string
	config   *tls.Config
	key      *ecdsa.PrivateKey
	instance string
	template string
}

func (g *generator) agent(number int) (*agent, error) {
	a := &agent{generator: g, number: number, name: fmt.Sprintf("load-%05d", number)}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	leaf, err := g.issue(a.key, "/gpuwarden/agent/"+a.name)
	if err != nil {
		return nil, err
	}
	a.config = &tls.Config{
		Certificates:       []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: a.key}},
		InsecureSkipVerify: true, // SPIFFE servers have no host name; see the comment above
		NextProtos:         []string{"h2"},
		MinVersion:         tls.VersionTLS13,
	}
	a.instance = hex.EncodeToString(random(16))
	a.template = strings.NewReplacer(
		"@HEX@", fmt.Sprintf("%08x", number), "@DEC@", fmt.Sprintf("%08d", number),
		"@NODE@", a.name, "@INSTANCE@", a.instance,
	).Replace(g.text)
	return a, nil
}

func (g *generator) issue(key *ecdsa.PrivateKey, path string) ([]byte, error) {
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(random(16)),
		Subject:               pkix.Name{CommonName: "gpuwarden sandbox workload"},
		NotBefore:             time.Now().Add(-10 * time.Second),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyAgreement,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		SubjectKeyId:          id[:20],
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: g.domain, Path: path}},
	}
	return x509.CreateCertificate(rand.Reader, template, g.ca, &key.PublicKey, g.caKey)
}

// run keeps a stream forever, with the real agent's back-off between two.
func (a *agent) run() {
	failures := 0
	for {
		if a.stream() {
			failures = 0
		}
		bound := min(30*time.Second, time.Second<<min(failures, 10))
		time.Sleep(time.Duration(mathrand.Float64() * float64(bound)))
		failures++
	}
}

// stream returns whether evidence was accepted on it.
func (a *agent) stream() (accepted bool) {
	conn, err := a.dial()
	if err != nil {
		a.count("dial: " + short(err))
		return false
	}
	defer conn.Close()
	stream, err := openStream(conn, a.address)
	if err != nil {
		return false
	}
	document := strings.NewReplacer("@NODE@", a.name, "@INSTANCE@", a.instance).Replace(a.hello)
	if err := stream.send(field(nil, 1, field(nil, 1, []byte(document)))); err != nil {
		return false
	}
	a.change(1)
	defer a.change(-1)
	seq, prev, asked := 0, strings.Repeat("0", 64), time.Time{}
	for {
		message, err := stream.receive()
		if err != nil {
			return accepted
		}
		var failure error
		_ = fields(message, func(number int, value []byte, _ uint64) {
			switch number {
			case 1:
				asked = time.Now()
				seq++
				var answer []byte
				if answer, prev, failure = a.answer(value, seq, prev); failure == nil {
					failure = stream.send(answer)
				}
			case 2:
				judged, err := decodeVerdict(value)
				failure = err
				accepted = accepted || judged.accepted
				a.judged(judged, time.Since(asked))
			}
		})
		if failure != nil {
			a.count("answer: " + short(failure))
			return accepted
		}
	}
}

func (a *agent) dial() (net.Conn, error) {
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: a.config}
	return dialer.Dial("tcp", a.address)
}

func (a *agent) answer(message []byte, seq int, prev string) ([]byte, string, error) {
	var raw []byte
	if err := fields(message, func(number int, value []byte, _ uint64) {
		if number == 1 {
			raw = value
		}
	}); err != nil {
		return nil, "", err
	}
	challenge, err := decodeEnvelope(raw)
	if err != nil {
		return nil, "", err
	}
	var asked challengeDocument
	if err := json.Unmarshal(challenge.payload, &asked); err != nil {
		return nil, "", err
	}
	now := time.Now()
	payload := []byte(strings.NewReplacer(
		"@STREAM@", asked.StreamID, "@CHALLENGE@", asked.ChallengeID, "@NONCE@", asked.Nonce,
		"@DIGEST@", hexDigest(challenge.payload), "@PREV@", prev, "987654321", strconv.Itoa(seq),
		"@WALL@", strconv.FormatInt(now.UnixMilli(), 10),
		"@BOOT@", strconv.FormatInt(now.UnixMilli()%1_000_000_000, 10),
	).Replace(a.template))
	evidence := evidenceMessage{envelope: envelope{payload: payload, kind: []byte(typeEvidence)}}
	text := sha256.Sum256(pae(evidence.envelope.kind, payload))
	if evidence.envelope.signature, err = ecdsa.SignASN1(rand.Reader, a.key, text[:]); err != nil {
		return nil, "", err
	}
	if evidence.stream, err = hex.DecodeString(asked.StreamID); err != nil {
		return nil, "", err
	}
	if evidence.challenge, err = hex.DecodeString(asked.ChallengeID); err != nil {
		return nil, "", err
	}
	if evidence.nonce, err = hex.DecodeString(asked.Nonce); err != nil {
		return nil, "", err
	}
	return evidence.encode(), hex.EncodeToString(text[:]), nil
}

func (a *agent) judged(v verdict, latency time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.accepted {
		a.accepted++
		a.nodes[a.number] = true
		if len(a.latencies) < 100_000 {
			a.latencies = append(a.latencies, latency.Seconds()*1000)
		}
	} else {
		a.codes[v.code]++
	}
}

func (g *generator) change(by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open += by
	if by > 0 {
		g.opened++
	}
}

func (g *generator) count(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.codes[what]++
}

// report says where the agents stand; latencies are those since the last report.
func (g *generator) report() {
	g.mu.Lock()
	defer g.mu.Unlock()
	slices.Sort(g.latencies)
	at := func(share float64) float64 {
		if len(g.latencies) == 0 {
			return 0
		}
		return g.latencies[int(share*float64(len(g.latencies)-1))]
	}
	say(map[string]any{
		"event": "report", "streams": g.open, "opened": g.opened, "accepted": g.accepted,
		"nodes": len(g.nodes), "p50_ms": at(0.5), "p99_ms": at(0.99), "codes": g.codes,
	})
	g.latencies = g.latencies[:0]
}

func short(err error) string {
	var inner *net.OpError
	if errors.As(err, &inner) {
		return inner.Op
	}
	return err.Error()
}

func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	address := flags.String("address", "", "host:port of the ingest")
	count := flags.Int("agents", 1000, "agents")
	rate := flags.Float64("rate", 1000, "agents started per second")
	parallel := flags.Int("parallel", 64, "handshakes at a time")
	caCert := flags.String("ca", "", "PEM of the CA")
	caKey := flags.String("ca-key", "", "PEM of the CA's key")
	domain := flags.String("trust-domain", "", "trust domain")
	hello := flags.String("hello", "", "template of the Hello document")
	evidence := flags.String("evidence", "", "template of the evidence document")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	g := &generator{
		address: *address, domain: *domain, gate: make(chan struct{}, *parallel),
		codes: map[string]int{}, nodes: map[int]bool{},
	}
	if err := g.read(*caCert, *caKey, *hello, *evidence); err != nil {
		return err
	}
	agents := make([]*agent, *count)
	for number := range agents {
		var err error
		if agents[number], err = g.agent(number); err != nil {
			return err
		}
	}
	say(map[string]any{"event": "made"})
	// Every line on standard input asks for a report; its end ends the program. The first line
	// starts the agents.
	var line string
	if _, err := fmt.Scanln(&line); err != nil {
		return err
	}
	go func() {
		for number, one := range agents {
			go one.run()
			if *rate > 0 && number%16 == 0 {
				time.Sleep(time.Duration(16 / *rate * float64(time.Second)))
			}
		}
	}()
	for {
		if _, err := fmt.Scanln(&line); err != nil {
			return nil
		}
		g.report()
	}
}

func (g *generator) read(caCert, caKey, hello, evidence string) error {
	text := map[string][]byte{}
	for _, file := range []string{caCert, caKey, hello, evidence} {
		var err error
		if text[file], err = os.ReadFile(file); err != nil {
			return err
		}
	}
	g.hello, g.text = string(text[hello]), string(text[evidence])
	block, _ := pem.Decode(text[caCert])
	if block == nil {
		return errors.New("no PEM in " + caCert)
	}
	var err error
	if g.ca, err = x509.ParseCertificate(block.Bytes); err != nil {
		return err
	}
	if block, _ = pem.Decode(text[caKey]); block == nil {
		return errors.New("no PEM in " + caKey)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return err
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("an EC key is wanted in " + caKey)
	}
	g.caKey = private
	return nil
}
