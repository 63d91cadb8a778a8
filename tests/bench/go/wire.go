package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
)

// The few messages of the attestation stream, in protobuf's wire format.

const (
	typeChallenge = "application/vnd.gpuwarden.challenge.v1+json"
	typeEvidence  = "application/vnd.gpuwarden.evidence.v1+json"
	attestPath    = "/gpuwarden.wire.v1.AttestationService/Attest"
)

func field(to []byte, number int, value []byte) []byte {
	to = append(to, byte(number<<3|2))
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

func number(to []byte, numberOf int, value uint64) []byte {
	return binary.AppendUvarint(append(to, byte(numberOf<<3)), value)
}

// fields calls take for every field; value is nil for numbers.
func fields(from []byte, take func(number int, value []byte, count uint64)) error {
	for len(from) > 0 {
		tag, used := binary.Uvarint(from)
		if used <= 0 {
			return errors.New("bad tag")
		}
		from = from[used:]
		value, used := binary.Uvarint(from)
		if used <= 0 {
			return errors.New("bad value")
		}
		from = from[used:]
		switch tag & 7 {
		case 0:
			take(int(tag>>3), nil, value)
		case 2:
			if value > uint64(len(from)) {
				return io.ErrUnexpectedEOF
			}
			take(int(tag>>3), from[:value], 0)
			from = from[value:]
		default:
			return errors.New("bad wire type")
		}
	}
	return nil
}

type envelope struct{ payload, kind, signature []byte }

func (e envelope) encode() []byte {
	return field(field(field(nil, 1, e.payload), 2, e.kind), 3, e.signature)
}

func decodeEnvelope(from []byte) (e envelope, err error) {
	err = fields(from, func(number int, value []byte, _ uint64) {
		switch number {
		case 1:
			e.payload = value
		case 2:
			e.kind = value
		case 3:
			e.signature = value
		}
	})
	return e, err
}

type evidenceMessage struct {
	stream, challenge, nonce []byte
	envelope                 envelope
}

func (m evidenceMessage) encode() []byte {
	inner := field(field(field(nil, 1, m.stream), 2, m.challenge), 3, m.nonce)
	return field(nil, 2, field(inner, 4, m.envelope.encode()))
}

func decodeEvidence(from []byte) (m evidenceMessage, err error) {
	var raw []byte
	err = fields(from, func(number int, value []byte, _ uint64) {
		switch number {
		case 1:
			m.stream = value
		case 2:
			m.challenge = value
		case 3:
			m.nonce = value
		case 4:
			raw = value
		}
	})
	if err == nil {
		m.envelope, err = decodeEnvelope(raw)
	}
	return m, err
}

type verdict struct {
	accepted bool
	code     string
}

func decodeVerdict(from []byte) (v verdict, err error) {
	err = fields(from, func(number int, value []byte, count uint64) {
		switch number {
		case 2:
			v.accepted = count == 1
		case 3:
			v.code = string(value)
		}
	})
	return v, err
}

// framed puts gRPC's five bytes before a message.
func framed(message []byte) []byte {
	head := make([]byte, 5, 5+len(message))
	binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
	return append(head, message...)
}

// pae is DSSE's pre-authentication encoding.
func pae(kind, payload []byte) []byte {
	out := make([]byte, 0, len(payload)+len(kind)+40)
	out = append(out, "DSSEv1 "...)
	out = append(strconv.AppendInt(out, int64(len(kind)), 10), ' ')
	out = append(append(out, kind...), ' ')
	out = append(strconv.AppendInt(out, int64(len(payload)), 10), ' ')
	return append(out, payload...)
}

func hexDigest(of []byte) string {
	sum := sha256.Sum256(of)
	return hex.EncodeToString(sum[:])
}

type challengeDocument struct {
	Protocol         int      `json:"protocol"`
	Controller       string   `json:"controller"`
	Cluster          string   `json:"cluster"`
	TrustDomain      string   `json:"trustDomain"`
	StreamID         string   `json:"streamId"`
	ChallengeID      string   `json:"challengeId"`
	Nonce            string   `json:"nonce"`
	SpareNonce       string   `json:"spareNonce"`
	HelloSHA256      string   `json:"helloSha256"`
	LeafSHA256       string   `json:"leafSha256"`
	Want             []string `json:"want"`
	TTLMs            int64    `json:"ttlMs"`
	IntervalMs       int64    `json:"intervalMs"`
	Checkpoint       *string  `json:"checkpoint"`
	ConsistencyProof []string `json:"consistencyProof"`
	WallMs           string   `json:"wallMs"`
}

type evidenceDocument struct {
	Protocol        int    `json:"protocol"`
	Audience        string `json:"audience"`
	TrustDomain     string `json:"trustDomain"`
	NodeName        string `json:"nodeName"`
	StreamID        string `json:"streamId"`
	ChallengeID     string `json:"challengeId"`
	Nonce           string `json:"nonce"`
	ChallengeSHA256 string `json:"challengeSha256"`
	Seq             int    `json:"seq"`
	Prev            string `json:"prev"`
	InstanceID      string `json:"instanceId"`
	BootID          string `json:"bootId"`
	WallMs          string `json:"wallMs"`
	BoottimeMs      string `json:"boottimeMs"`
	Inventory       struct {
		Host struct {
			Driver     string `json:"driver"`
			CUDA       string `json:"cuda"`
			CC         string `json:"cc"`
			Arch       string `json:"arch"`
			SystemUUID string `json:"systemUuid"`
		} `json:"host"`
		GPUs []struct {
			Index             int     `json:"index"`
			UUID              string  `json:"uuid"`
			Serial            *string `json:"serial"`
			BoardPartNumber   *string `json:"boardPartNumber"`
			Product           *string `json:"product"`
			PCIBusID          string  `json:"pciBusId"`
			PCI               *string `json:"pci"`
			Subsystem         *string `json:"subsystem"`
			VBIOS             *string `json:"vbios"`
			GSP               *string `json:"gsp"`
			MemoryBytes       *string `json:"memoryBytes"`
			ECC               *bool   `json:"ecc"`
			MIG               *bool   `json:"mig"`
			Virt              *string `json:"virt"`
			ComputeCapability *string `json:"computeCapability"`
			Architecture      *string `json:"architecture"`
			ComputeMode       *string `json:"computeMode"`
			PersistenceMode   *bool   `json:"persistenceMode"`
			NVLinks           []struct {
				Link   int     `json:"link"`
				Active bool    `json:"active"`
				Peer   *string `json:"peer"`
			} `json:"nvlinks"`
			ChassisSerial *string `json:"chassisSerial"`
			ModuleID      *int    `json:"moduleId"`
		} `json:"gpus"`
	} `json:"inventory"`
}
