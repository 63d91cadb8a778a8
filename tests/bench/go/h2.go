package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// A client for one gRPC stream on one connection: just enough HTTP/2, so that thousands of
// them cost the machine under test as little as can be.

const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
	frameWindow   = 8

	flagEnd       = 1
	flagAck       = 1
	flagEndHeader = 4

	window    = 65535
	giveBack  = 32768
	frameMost = 16384
)

var errEnded = errors.New("the stream ended")

type h2stream struct {
	conn     net.Conn
	in       *bufio.Reader
	buffer   []byte // of gRPC messages
	sendConn int64
	sendOne  int64
	initial  int64
	received uint32
	waiting  [][]byte // DATA that the windows do not allow yet
}

func openStream(conn net.Conn, authority string) (*h2stream, error) {
	s := &h2stream{
		conn: conn, in: bufio.NewReaderSize(conn, 4096),
		sendConn: window, sendOne: window, initial: window,
	}
	out := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	out = appendFrame(out, frameSettings, 0, 0, nil)
	out = appendFrame(out, frameHeaders, flagEndHeader, 1, requestHeaders(authority))
	_, err := conn.Write(out)
	return s, err
}

func requestHeaders(authority string) []byte {
	text := func(to []byte, value string) []byte {
		return append(append(to, byte(len(value))), value...)
	}
	block := []byte{0x83, 0x87, 0x04}
	block = text(block, attestPath)
	block = text(append(block, 0x01), authority)
	block = text(append(block, 0x0f, 0x10), "application/grpc")
	return text(text(append(block, 0x00), "te"), "trailers")
}

func appendFrame(to []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	size := len(payload)
	to = append(to, byte(size>>16), byte(size>>8), byte(size), kind, flags)
	return append(binary.BigEndian.AppendUint32(to, stream), payload...)
}

// send writes one gRPC message, as far as the windows allow now; the rest follows.
func (s *h2stream) send(message []byte) error {
	data := framed(message)
	for len(data) > 0 {
		size := min(len(data), frameMost)
		s.waiting = append(s.waiting, data[:size])
		data = data[size:]
	}
	return s.flush()
}

func (s *h2stream) flush() error {
	var out []byte
	for len(s.waiting) > 0 {
		next := s.waiting[0]
		size := int64(len(next))
		if size > s.sendConn || size > s.sendOne {
			break
		}
		s.sendConn -= size
		s.sendOne -= size
		out = appendFrame(out, frameData, 0, 1, next)
		s.waiting = s.waiting[1:]
	}
	if len(out) == 0 {
		return nil
	}
	_, err := s.conn.Write(out)
	return err
}

// receive returns the next gRPC message.
func (s *h2stream) receive() ([]byte, error) {
	for {
		if len(s.buffer) >= 5 {
			size := int(binary.BigEndian.Uint32(s.buffer[1:5]))
			if len(s.buffer) >= 5+size {
				message := s.buffer[5 : 5+size]
				s.buffer = s.buffer[5+size:]
				return message, nil
			}
		}
		if err := s.frame(); err != nil {
			return nil, err
		}
	}
}

func (s *h2stream) frame() error {
	var head [9]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return err
	}
	size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	payload := make([]byte, size)
	if _, err := io.ReadFull(s.in, payload); err != nil {
		return err
	}
	stream := binary.BigEndian.Uint32(head[5:])
	switch kind, flags := head[3], head[4]; kind {
	case frameData:
		s.buffer = append(s.buffer, payload...)
		return s.giveBack(uint32(size))
	case frameHeaders:
		if flags&flagEnd != 0 {
			return errEnded
		}
	case frameReset, frameGoAway:
		return errEnded
	case frameSettings:
		if flags&flagAck == 0 {
			return s.settings(payload)
		}
	case framePing:
		if flags&flagAck == 0 {
			_, err := s.conn.Write(appendFrame(nil, framePing, flagAck, 0, payload))
			return err
		}
	case frameWindow:
		more := int64(binary.BigEndian.Uint32(payload))
		if stream == 0 {
			s.sendConn += more
		} else {
			s.sendOne += more
		}
		return s.flush()
	}
	return nil
}

func (s *h2stream) settings(payload []byte) error {
	for ; len(payload) >= 6; payload = payload[6:] {
		if binary.BigEndian.Uint16(payload) == 4 {
			value := int64(binary.BigEndian.Uint32(payload[2:]))
			s.sendOne += value - s.initial
			s.initial = value
		}
	}
	if _, err := s.conn.Write(appendFrame(nil, frameSettings, flagAck, 0, nil)); err != nil {
		return err
	}
	return s.flush()
}

func (s *h2stream) giveBack(size uint32) error {
	s.received += size
	if s.received < giveBack {
		return nil
	}
	more := binary.BigEndian.AppendUint32(nil, s.received)
	s.received = 0
	out := appendFrame(nil, frameWindow, 0, 0, more)
	_, err := s.conn.Write(appendFrame(out, frameWindow, 0, 1, more))
	return err
}
