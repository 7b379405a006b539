// Asks Porcupine whether histories are linearizable: a question a line on standard input, its answer a line on
// standard output. tandemmq.chaos.checking.porcupine builds it, asks, and says what the numbers mean.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	write = iota // of a register: a value; of a log: a value at its end, which is the place `at` where that is known
	read         // of a register: its value; of a log: values from the place `at` on
	whole        // of a log: it holds all of Content, and nothing behind it
)

const leftMax = 5 // operations that an answer names

const unset = -1 // a register whose first value nobody knows

// question is one object and what was done to it.
type question struct {
	Model   string  `json:"model"`   // "register" or "log"
	First   int64   `json:"first"`   // of a log: the place of the first value in Content
	Next    int64   `json:"next"`    // of a log: its end at the beginning
	Content []int64 `json:"content"` // of a log: what it holds in the end
	// Each: call, return, kind, at (-1: unknown), values. Times are ns, both ends of the interval belong to it.
	Operations [][]int64 `json:"operations"`
}

// answer: Ok, Illegal or Unknown (no answer in time). Of an illegal history also how many operations the longest order
// that fits has, and those that are not in it, the few that ended first: one of them could come next and does not fit.
type answer struct {
	Result porcupine.CheckResult `json:"result"`
	Fits   int                   `json:"fits"`
	Left   []int                 `json:"left"`
}

func register() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return int64(unset) },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			operation := input.([]int64)
			value := operation[4]
			return operation[2] == write || state == int64(unset) || state == value, value
		},
	}
}

// log only grows: its state is its end. What lies where is known, as somebody read all of it when nobody wrote any more.
func log(asked *question) porcupine.Model {
	end := asked.First + int64(len(asked.Content))
	holds := func(at int64, values []int64) bool {
		if at < asked.First || at+int64(len(values)) > end {
			return false
		}
		for i, value := range values {
			if asked.Content[at-asked.First+int64(i)] != value {
				return false
			}
		}
		return true
	}
	return porcupine.Model{
		Init: func() interface{} { return asked.Next },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			operation, next := input.([]int64), state.(int64)
			at, values := operation[3], operation[4:]
			switch operation[2] {
			case write:
				return (at < 0 || at == next) && holds(next, values), next + int64(len(values))
			case read:
				return at+int64(len(values)) <= next && holds(at, values), next
			default:
				return next == end, next
			}
		},
		Hash: func(state interface{}) uint64 { return uint64(state.(int64)) * 0x9e3779b97f4a7c15 },
	}
}

func judge(asked *question, timeout time.Duration) (answer, error) {
	var model porcupine.Model
	switch asked.Model {
	case "register":
		model = register()
	case "log":
		model = log(asked)
	default:
		return answer{}, fmt.Errorf("no model %q", asked.Model)
	}
	history := make([]porcupine.Operation, len(asked.Operations))
	for i, operation := range asked.Operations {
		if len(operation) < 4 || operation[2] == write && len(operation) < 5 {
			return answer{}, fmt.Errorf("operation %d has %d numbers", i, len(operation))
		}
		history[i] = porcupine.Operation{Input: operation, Call: operation[0], Return: operation[1]}
	}
	result := porcupine.CheckOperationsTimeout(model, history, timeout)
	if result != porcupine.Illegal {
		return answer{Result: result}, nil
	}
	_, found := porcupine.CheckOperationsVerbose(model, history, timeout)
	var longest []int
	for _, of := range found.PartialLinearizations() {
		for _, order := range of {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	fits := make(map[int]bool, len(longest))
	for _, at := range longest {
		fits[at] = true
	}
	said := answer{Result: result, Fits: len(longest)}
	for at := range history {
		if !fits[at] {
			said.Left = append(said.Left, at)
		}
	}
	sort.Slice(said.Left, func(i, j int) bool { return history[said.Left[i]].Return < history[said.Left[j]].Return })
	if len(said.Left) > leftMax {
		said.Left = said.Left[:leftMax]
	}
	return said, nil
}

func run(timeout time.Duration) error {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		var asked question
		if err := json.Unmarshal(line, &asked); err != nil {
			return err
		}
		said, err := judge(&asked, timeout)
		if err != nil {
			return err
		}
		if err := answers.Encode(said); err != nil {
			return err
		}
	}
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for one question; its answer is Unknown then")
	flag.Parse()
	if err := run(*timeout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
