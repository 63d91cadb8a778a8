package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// The floor: signed challenges, one use each, and evidence whose signature, challenge, sequence
// and inventory are checked. No chain rules, no class document, no pins, no audit log.

type floor struct {
	key      *ecdsa.PrivateKey
	chain    [][]byte
	audience string
	domain   string
	cluster  string
	interval time.Duration
	ttl      time.Duration

	mu    sync.Mutex
	nodes map[string]*evidenceDocument
}

type floorStream struct {
	*floor
	out     http.ResponseWriter
	leaf    *x509.Certificate
	id      []byte
	hello   string
	seq     int
	prev    string
	pending map[string]pending
}

type pending struct {
	nonce  []byte
	digest string
	until  time.Time
}

func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	defer w.Header().Set("Grpc-Status", "0")
	messages := make(chan []byte, 1)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(messages)
		for {
			message, err := readFramed(r.Body)
			if err != nil {
				return
			}
			select {
			case messages <- message:
			case <-done:
				return
			}
		}
	}()
	hello, ok := <-messages
	if !ok {
		return
	}
	s := &floorStream{
		floor: f, out: w, leaf: r.TLS.PeerCertificates[0], id: random(16),
		prev: hex.EncodeToString(make([]byte, 32)), pending: map[string]pending{},
	}
	if err := fields(hello, func(number int, value []byte, _ uint64) {
		_ = fields(value, func(_ int, document []byte, _ uint64) { s.hello = hexDigest(document) })
	}); err != nil {
		return
	}
	s.converse(messages)
}

func (s *floorStream) converse(messages <-chan []byte) {
	due := time.NewTimer(s.interval)
	defer due.Stop()
	if s.challenge() != nil {
		return
	}
	for {
		select {
		case message, ok := <-messages:
			if !ok || s.judge(message) != nil {
				return
			}
		case <-due.C:
			if s.challenge() != nil {
				return
			}
			due.Reset(s.interval)
		}
	}
}

func (s *floorStream) challenge() error {
	id, nonce := random(16), random(32)
	leaf := sha256.Sum256(s.leaf.Raw)
	payload, err := json.Marshal(challengeDocument{
		Protocol: 1, Controller: s.audience, Cluster: s.cluster, TrustDomain: s.domain,
		StreamID: hex.EncodeToString(s.id), ChallengeID: hex.EncodeToString(id),
		Nonce: hex.EncodeToString(nonce), SpareNonce: hex.EncodeToString(random(32)),
		HelloSHA256: s.hello, LeafSHA256: hex.EncodeToString(leaf[:]),
		Want: []string{"inventory"}, TTLMs: s.ttl.Milliseconds(), IntervalMs: s.interval.Milliseconds(),
		ConsistencyProof: []string{}, WallMs: strconv.FormatInt(time.Now().UnixMilli(), 10),
	})
	if err != nil {
		return err
	}
	signed := envelope{payload: payload, kind: []byte(typeChallenge)}
	digest := sha256.Sum256(pae(signed.kind, payload))
	if signed.signature, err = ecdsa.SignASN1(rand.Reader, s.key, digest[:]); err != nil {
		return err
	}
	s.pending[string(id)] = pending{nonce, hexDigest(payload), time.Now().Add(s.ttl)}
	inner := field(nil, 1, signed.encode())
	for _, certificate := range s.chain {
		inner = field(inner, 2, certificate)
	}
	return s.write(field(nil, 1, inner))
}

func (s *floorStream) judge(message []byte) error {
	var raw []byte
	if err := fields(message, func(number int, value []byte, _ uint64) {
		if number == 2 {
			raw = value
		}
	}); err != nil {
		return err
	}
	evidence, err := decodeEvidence(raw)
	if err != nil {
		return err
	}
	known, ok := s.pending[string(evidence.challenge)]
	delete(s.pending, string(evidence.challenge))
	if !ok || !bytes.Equal(evidence.nonce, known.nonce) || time.Now().After(known.until) {
		return s.verdict(evidence.challenge, "CHALLENGE_UNKNOWN", "")
	}
	text := pae(evidence.envelope.kind, evidence.envelope.payload)
	digest := sha256.Sum256(text)
	key, ok := s.leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !ecdsa.VerifyASN1(key, digest[:], evidence.envelope.signature) {
		return s.verdict(evidence.challenge, "SIGNATURE_INVALID", "")
	}
	var document evidenceDocument
	if err := json.Unmarshal(evidence.envelope.payload, &document); err != nil {
		return s.verdict(evidence.challenge, "INVENTORY_INVALID", "")
	}
	if document.Nonce != hex.EncodeToString(known.nonce) || document.Seq != s.seq+1 ||
		document.Prev != s.prev || document.ChallengeSHA256 != known.digest ||
		document.Audience != s.audience || len(document.Inventory.GPUs) == 0 {
		return s.verdict(evidence.challenge, "BINDING_MISMATCH", "")
	}
	s.seq, s.prev = document.Seq, hex.EncodeToString(digest[:])
	s.mu.Lock()
	s.nodes[document.NodeName] = &document
	s.mu.Unlock()
	return s.verdict(evidence.challenge, "ACCEPTED", s.prev)
}

func (s *floorStream) verdict(challenge []byte, code, hash string) error {
	outcome := uint64(2)
	if code == "ACCEPTED" {
		outcome = 1
	}
	inner := field(number(field(nil, 1, challenge), 2, outcome), 3, []byte(code))
	return s.write(field(nil, 2, field(inner, 5, []byte(hash))))
}

func (s *floorStream) write(message []byte) error {
	if _, err := s.out.Write(framed(message)); err != nil {
		return err
	}
	return http.NewResponseController(s.out).Flush()
}

func readFramed(from io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > 256<<10 {
		return nil, errors.New("message too large")
	}
	message := make([]byte, size)
	_, err := io.ReadFull(from, message)
	return message, err
}

func random(size int) []byte {
	out := make([]byte, size)
	if _, err := rand.Read(out); err != nil {
		panic(err)
	}
	return out
}

func ingest(arguments []string) error {
	flags := flag.NewFlagSet("ingest", flag.ExitOnError)
	cert := flags.String("cert", "", "PEM certificate and chain")
	key := flags.String("key", "", "PEM key")
	ca := flags.String("ca", "", "PEM of the client CA")
	audience := flags.String("audience", "", "SPIFFE ID of the controller")
	domain := flags.String("trust-domain", "", "trust domain")
	cluster := flags.String("cluster", "", "cluster")
	interval := flags.Duration("interval", time.Second, "between challenges")
	ttl := flags.Duration("ttl", 15*time.Second, "of a challenge")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	config, err := serverTLS(*cert, *key, *ca)
	if err != nil {
		return err
	}
	private, ok := config.Certificates[0].PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("an EC key is wanted")
	}
	f := &floor{
		key: private, chain: config.Certificates[0].Certificate, audience: *audience,
		domain: *domain, cluster: *cluster, interval: *interval, ttl: *ttl,
		nodes: map[string]*evidenceDocument{},
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+attestPath, f)
	server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second}
	return server.ServeTLS(listener, "", "")
}
