// gVisor's netstack in the bench row `tcp`.
//
// It speaks as the bench's workers do (bench/src/proc.rs): role and parameters (bench/src/rows/tcp/plan.rs) as arguments, one line of JSON with its
// figures.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// plan is a worker's parameters: bench/src/rows/tcp/plan.rs.
type plan struct {
	Way     string  `json:"way"`
	Streams int     `json:"streams"`
	Warm    float64 `json:"warm"`
	Seconds float64 `json:"seconds"`
	Verify  *uint64 `json:"verify"`
	Piece   int     `json:"piece"`
	Buffer  int     `json:"buffer"`
	Peers   string  `json:"peers"`
	Device  string  `json:"device"`
	MTU     uint32  `json:"mtu"`
}

type figures map[string]any

const (
	firstPort = 5001
	nic       = 1
)

var (
	peer   = tcpip.AddrFrom4([4]byte{10, 77, 0, 1})
	engine = tcpip.AddrFrom4([4]byte{10, 77, 0, 2})
	mac    = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x02")
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gvisor:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("a worker needs a role and its parameters")
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if err := pin(); err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal([]byte(os.Args[2]), &p); err != nil {
		return err
	}
	runtime.LockOSThread() // Which is in the peer's namespace for good.
	if err := enter(p.Peers); err != nil {
		return err
	}
	device, err := openTap(p.Device, p.MTU, mac)
	if err != nil {
		return err
	}
	net, err := newStack(device, &p)
	if err != nil {
		return err
	}
	ends := make([]*gonet.TCPConn, p.Streams)
	for i := range ends {
		to := tcpip.FullAddress{NIC: nic, Addr: peer, Port: uint16(firstPort + i)}
		if ends[i], err = gonet.DialTCP(net, to, ipv4.ProtocolNumber); err != nil {
			return fmt.Errorf("connecting: %w", err)
		}
	}
	var said figures
	switch p.Way {
	case "Send":
		said, err = send(ends, &p)
	case "Recv":
		said, err = receive(ends, &p)
	default:
		said, err = roundTrips(ends[0], &p)
	}
	if err != nil {
		return err
	}
	mean := func(way int) uint64 { return device.bytes[way] / max(device.packets[way], 1) }
	said["says"] = fmt.Sprintf("%d packets out of %d bytes, %d in of %d, GOMAXPROCS %d",
		device.packets[0], mean(0), device.packets[1], mean(1), runtime.GOMAXPROCS(0))
	said["buffers"] = fmt.Sprintf("%[1]d out, %[1]d in", p.Buffer)
	return json.NewEncoder(os.Stdout).Encode(said)
}

// pin has all threads, those that there are and those to come, on one CPU, as every engine's are.
func pin() error {
	cpu, err := strconv.Atoi(os.Getenv("ONECOPY_BENCH_CPU"))
	if err != nil {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, _ := strconv.Atoi(task.Name())
		if err := unix.SchedSetaffinity(id, &set); err != nil {
			return err
		}
	}
	runtime.GOMAXPROCS(1)
	return nil
}

func newStack(device *tap, p *plan) (*stack.Stack, error) {
	net := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack, moderate, cubic := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false), tcpip.CongestionControlOption("cubic")
	most := max(p.Buffer, tcp.MaxBufferSize)
	options := []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &cubic,
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: p.Buffer, Max: most},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: p.Buffer, Max: most},
	}
	for _, option := range options {
		if err := net.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("%T: %v", option, err)
		}
	}
	if err := net.CreateNIC(nic, device); err != nil {
		return nil, fmt.Errorf("making the interface: %v", err)
	}
	address := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: engine, PrefixLen: 24},
	}
	if err := net.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("giving it an address: %v", err)
	}
	net.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return net, nil
}

// now is a clock that all processes of the machine share.
func now() float64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return float64(t.Sec) + float64(t.Nsec)/1e9
}

// word is the eight bytes at an index of the stream of a seed (splitmix64), as in bench/src/rows/bytes.rs.
func word(seed, index uint64) uint64 {
	z := seed + (index+1)*0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func byteAt(stream int, at uint64) byte {
	return byte(word(uint64(0x5eed+stream), at/8) >> (8 * (at % 8)))
}

func fill(bytes []byte, stream int, at uint64) {
	for i := range bytes {
		bytes[i] = byteAt(stream, at+uint64(i))
	}
}

func check(bytes []byte, stream int, at uint64) error {
	for i := range bytes {
		if bytes[i] != byteAt(stream, at+uint64(i)) {
			return fmt.Errorf("byte %d of stream %d is wrong", at+uint64(i), stream)
		}
	}
	return nil
}

func addUp(sum uint64, bytes []byte) uint64 {
	for len(bytes) >= 32 {
		a, b := binary.LittleEndian.Uint64(bytes), binary.LittleEndian.Uint64(bytes[8:])
		c, d := binary.LittleEndian.Uint64(bytes[16:]), binary.LittleEndian.Uint64(bytes[24:])
		sum += a + b + c + d
		bytes = bytes[32:]
	}
	for _, b := range bytes {
		sum += uint64(b)
	}
	return sum
}

// each runs act for every stream, on a goroutine of its own, and gives the first error.
func each(ends []*gonet.TCPConn, act func(int, *gonet.TCPConn) error) error {
	var group sync.WaitGroup
	errs := make([]error, len(ends))
	for i, end := range ends {
		group.Go(func() { errs[i] = act(i, end) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func send(ends []*gonet.TCPConn, p *plan) (figures, error) {
	until := now() + p.Warm + p.Seconds + 0.03
	return figures{}, each(ends, func(stream int, end *gonet.TCPConn) error {
		piece := make([]byte, p.Piece)
		for at := uint64(0); ; {
			part := piece
			if p.Verify != nil {
				part = piece[:min(uint64(len(piece)), *p.Verify-at)]
				fill(part, stream, at)
			}
			if p.Verify != nil && len(part) == 0 || p.Verify == nil && now() >= until {
				break
			}
			if _, err := end.Write(part); err != nil {
				return err
			}
			at += uint64(len(part))
		}
		if err := end.CloseWrite(); err != nil {
			return err
		}
		if n, err := end.Read(piece); n != 0 || err != io.EOF {
			return fmt.Errorf("the reader of stream %d sent %d bytes: %v", stream, n, err)
		}
		return nil
	})
}

type look struct {
	at    float64
	bytes uint64
	busy  float64
}

// busy is the machine's CPU seconds: user, nice, system, irq and softirq of /proc/stat.
func busy() float64 {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	var ticks float64
	for _, i := range []int{1, 2, 3, 6, 7} {
		if i < len(fields) {
			value, _ := strconv.ParseFloat(fields[i], 64)
			ticks += value
		}
	}
	return ticks / 100 // USER_HZ
}

func receive(ends []*gonet.TCPConn, p *plan) (figures, error) {
	began := now()
	counts := make([]atomic.Uint64, len(ends))
	all := func() (sum uint64) {
		for i := range counts {
			sum += counts[i].Load()
		}
		return sum
	}
	var looks [2]look
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, at := range []float64{p.Warm, p.Warm + p.Seconds} {
			time.Sleep(time.Duration((began + at - now()) * 1e9))
			looks[i] = look{now(), all(), busy()}
		}
	}()
	var sums atomic.Uint64
	err := each(ends, func(stream int, end *gonet.TCPConn) error {
		piece := make([]byte, p.Piece)
		var at, sum uint64
		for {
			n, err := end.Read(piece)
			if p.Verify != nil {
				if err := check(piece[:n], stream, at); err != nil {
					return err
				}
			}
			sum = addUp(sum, piece[:n])
			at += uint64(n)
			counts[stream].Store(at)
			if err == io.EOF {
				sums.Add(sum)
				return end.Close()
			}
			if err != nil {
				return err
			}
		}
	})
	if err != nil || p.Verify != nil {
		return figures{"verified": all()}, err
	}
	<-done
	return figures{
		"bytes": looks[1].bytes - looks[0].bytes, "seconds": looks[1].at - looks[0].at, "cpu": looks[1].busy - looks[0].busy, "sum": sums.Load(),
	}, nil
}

func roundTrips(end *gonet.TCPConn, p *plan) (figures, error) {
	began, message := now(), make([]byte, p.Piece)
	warm := began + p.Warm
	var took []float64
	for trip := 0; ; trip++ {
		if p.Verify != nil {
			fill(message, 0, uint64(trip*len(message)))
		}
		sent := now()
		if p.Verify != nil && trip == 100 || p.Verify == nil && sent >= warm+p.Seconds {
			break
		}
		if _, err := end.Write(message); err != nil {
			return nil, err
		}
		clear(message)
		if _, err := io.ReadFull(end, message); err != nil {
			return nil, err
		}
		at := now()
		if p.Verify != nil {
			if err := check(message, 0, uint64(trip*len(message))); err != nil {
				return nil, err
			}
		}
		if at >= warm {
			took = append(took, at-sent)
		}
	}
	said := figures{"seconds": now() - began, "trips": len(took), "p50": 0.0, "p99": 0.0}
	if len(took) > 0 {
		sort.Float64s(took)
		said["p50"], said["p99"] = took[len(took)/2], took[len(took)*99/100]
	}
	return said, end.Close()
}
