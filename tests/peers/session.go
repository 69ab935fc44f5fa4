// JSON over standard input and output: one command per line in, one answer or event per line out.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// A handler reads its own arguments from the whole command object.
type handler func(ctx context.Context, args json.RawMessage) (any, error)

type session struct {
	in *json.Decoder

	mu  sync.Mutex // keeps the lines of concurrent answers and events whole
	out *json.Encoder
}

type reply struct {
	ID     json.RawMessage `json:"id"`
	Result any             `json:"result"`
}

type failure struct {
	ID    json.RawMessage `json:"id"`
	Error string          `json:"error"`
}

func newSession(in io.Reader, out io.Writer) *session {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return &session{in: json.NewDecoder(in), out: encoder}
}

// emit writes one line; nobody is left to tell when that fails.
func (s *session) emit(line any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(line)
}

// serve answers commands until "stop" or until the driver closes our input (it may have died).
func (s *session) serve(ctx context.Context, handlers map[string]handler) error {
	for {
		var line json.RawMessage
		if err := s.in.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var head struct {
			ID  json.RawMessage `json:"id"`
			Cmd string          `json:"cmd"`
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return err
		}
		if head.Cmd == "stop" {
			s.emit(reply{head.ID, struct{}{}})
			return nil
		}
		run := handlers[head.Cmd]
		if run == nil {
			s.emit(failure{head.ID, "unknown command " + head.Cmd})
			continue
		}
		// A hanging plugin holds one command up, not the ones after it.
		go func() {
			if result, err := run(ctx, line); err != nil {
				s.emit(failure{head.ID, err.Error()})
			} else {
				s.emit(reply{head.ID, result})
			}
		}()
	}
}
