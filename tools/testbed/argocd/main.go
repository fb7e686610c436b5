// Runs the scripts of an Argo CD customization as Argo CD runs them: JSON requests on standard input, a JSON answer a line on standard
// output. No library of Lua is open but the base, the tables and what loads them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

// Argo CD ends a script after this time.
const limit = time.Second

type request struct {
	Script string `json:"script"`
	Object any    `json:"object"`
}

type answer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	requests, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if result, err := evaluate(r.Script, r.Object); err != nil {
			a.Error = err.Error()
		} else {
			a.Result = result
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func evaluate(script string, object any) (json.RawMessage, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	// The others need the first.
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luajson.DecodeValue(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("the script returns no table, but %s", returned.Type())
	}
	encoded, err := luajson.Encode(returned)
	if err != nil {
		return nil, err
	}
	return restored(encoded, object)
}

// Lua has no empty map: it comes back as an empty list. Argo CD then keeps what was there before.
func restored(encoded []byte, before any) (json.RawMessage, error) {
	var after any
	if err := json.Unmarshal(encoded, &after); err != nil {
		return nil, err
	}
	return json.Marshal(restore(after, before))
}

func restore(after, before any) any {
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			for key, value := range after {
				if old, ok := before[key]; ok {
					after[key] = restore(value, old)
				}
			}
		}
	case []any:
		switch before := before.(type) {
		case map[string]any:
			if len(after) == 0 {
				return before
			}
		case []any:
			for at := range min(len(after), len(before)) {
				after[at] = restore(after[at], before[at])
			}
		}
	}
	return after
}
