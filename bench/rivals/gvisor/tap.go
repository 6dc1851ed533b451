package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// virtioLen is the length of virtio's header in front of each packet (linux/virtio_net.h).
const virtioLen = 10

// superSegment is the longest packet that goes over whole.
const superSegment = 65535

// tap is a TAP with virtio's header. fdbased, which comes with gVisor, has that header for AF_PACKET sockets alone, and no super-segments without it;
// this is the same, of one queue, for a TAP: readv, deliver, writev.
type tap struct {
	fd         int
	mtu        uint32
	mac        tcpip.LinkAddress
	dispatcher stack.NetworkDispatcher
	reading    sync.WaitGroup
	// packets and bytes, out and in.
	packets, bytes [2]uint64
}

// sizes of the buffers that a packet is read to, as fdbased has them.
var sizes = []int{128, 256, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 2048}

// enter puts the calling thread, which has to be locked, into a network namespace.
func enter(path string) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the namespace %s: %w", path, err)
	}
	defer unix.Close(ns)
	return unix.Setns(ns, unix.CLONE_NEWNET)
}

// openTap opens a device of the thread's namespace.
func openTap(name string, mtu uint32, mac tcpip.LinkAddress) (*tap, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, fmt.Errorf("TUNSETIFF of %s: %w", name, err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, virtioLen); err != nil {
		return nil, fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return nil, fmt.Errorf("TUNSETOFFLOAD: %w", err)
	}
	return &tap{fd: fd, mtu: mtu, mac: mac}, nil
}

func (t *tap) MTU() uint32                             { return t.mtu }
func (t *tap) SetMTU(uint32)                           {}
func (t *tap) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (t *tap) LinkAddress() tcpip.LinkAddress          { return t.mac }
func (t *tap) SetLinkAddress(tcpip.LinkAddress)        {}
func (t *tap) IsAttached() bool                        { return t.dispatcher != nil }
func (t *tap) Wait()                                   { t.reading.Wait() }
func (t *tap) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (t *tap) Close()                                  {}
func (t *tap) SetOnCloseAction(func())                 {}
func (t *tap) GSOMaxSize() uint32                      { return superSegment - header.EthernetMinimumSize }
func (t *tap) SupportedGSO() stack.SupportedGSO        { return stack.HostGSOSupported }

// (Of what is sent, gVisor leaves the checksum to the device where it leaves segmentation to it; with CapabilityTXChecksumOffload it would leave that of a SYN, too,
// without a word.)
func (t *tap) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
}

func (t *tap) Attach(dispatcher stack.NetworkDispatcher) {
	if dispatcher == nil || t.dispatcher != nil {
		return
	}
	t.dispatcher = dispatcher
	t.reading.Add(1)
	go func() {
		defer t.reading.Done()
		t.read()
	}()
}

func (t *tap) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

func (t *tap) ParseHeader(pkt *stack.PacketBuffer) bool {
	bytes, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(bytes).Type()
	}
	return ok
}

// read delivers what comes, on one goroutine.
func (t *tap) read() {
	var virtio [virtioLen]byte
	views := make([]*buffer.View, len(sizes))
	iovecs := make([]unix.Iovec, 1+len(sizes))
	iovecs[0].Base = &virtio[0]
	iovecs[0].SetLen(virtioLen)
	never, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	for {
		for i := range views {
			if views[i] != nil {
				break
			}
			views[i] = buffer.NewViewSize(sizes[i])
			iovecs[i+1].Base = views[i].BasePtr()
			iovecs[i+1].SetLen(views[i].Size())
		}
		n, errno := rawfile.BlockingReadvUntilStopped(never, t.fd, iovecs)
		if errno != 0 {
			return
		}
		left := n - virtioLen
		t.packets[1]++
		t.bytes[1] += uint64(left)
		var payload buffer.Buffer
		for i := 0; left > 0 && i < len(views); i++ {
			view := views[i]
			views[i] = nil
			if size := view.Size(); size > left {
				view.CapLength(left)
			}
			left -= view.Size()
			payload.Append(view)
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: payload})
		if t.ParseHeader(pkt) {
			pkt.RXChecksumValidated = true
			t.dispatcher.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
		}
		pkt.DecRef()
	}
}

// WritePackets writes each, or drops it where the device has no room.
func (t *tap) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for written, pkt := range pkts.AsSlice() {
		if errno := t.write(pkt); errno != 0 {
			return written, tcpip.TranslateErrno(errno)
		}
	}
	return pkts.Len(), nil
}

func (t *tap) write(pkt *stack.PacketBuffer) unix.Errno {
	var virtio [virtioLen]byte
	word := func(at int, value uint16) { virtio[at], virtio[at+1] = byte(value), byte(value>>8) }
	gso := pkt.GSOOptions
	if gso.Type != stack.GSONone {
		word(2, uint16(pkt.HeaderSize()))
		if gso.NeedsCsum {
			virtio[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
			word(6, header.EthernetMinimumSize+gso.L3HdrLen)
			word(8, gso.CsumOffset)
		}
		if pkt.Data().Size() > int(gso.MSS) {
			virtio[1] = 1 // VIRTIO_NET_HDR_GSO_TCPV4
			word(4, gso.MSS)
		}
	}
	views := pkt.AsSlices()
	var few [16]unix.Iovec
	iovecs := rawfile.AppendIovecFromBytes(few[:0], virtio[:], rawfile.MaxIovs)
	for _, view := range views {
		iovecs = rawfile.AppendIovecFromBytes(iovecs, view, rawfile.MaxIovs)
	}
	errno := rawfile.NonBlockingWriteIovec(t.fd, iovecs)
	if errno == 0 {
		t.packets[0]++
		t.bytes[0] += uint64(pkt.Size())
	}
	return errno
}
