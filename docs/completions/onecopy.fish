# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_onecopy_global_optspecs
    string join \n color= h/help V/version
end

function __fish_onecopy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_onecopy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_onecopy_using_subcommand
    set -l cmd (__fish_onecopy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c onecopy -n "__fish_onecopy_needs_command" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_needs_command" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_needs_command" -s V -l version -d 'Print version'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "serve" -d 'Serve the files below a folder to a proxy on this host'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "proxy" -d 'HTTP/1.1 reverse proxy in front of `onecopy serve`'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "demo" -d 'Serve real files through daemon and proxy beside the same over kernel sockets, and draw the result'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "nc" -d 'Move bytes between standard input and output, or files, and a connection: TCP, unix or UDP, over the kernel or a stack of our own'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "stack" -d 'Keep a stack of our own up on a TAP, to be tried, watched and tested against'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "ss" -d 'List the live onecopy sockets of this user, and what they have done'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "top" -d 'Watch these sockets live'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "bench" -d 'Measure, beside a rival in the same run'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "tune" -d 'Measure the stores of this machine once and save the profile'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "doctor" -d 'Say what this machine can do, what each feature will use, and why not better'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "health" -d 'Ask a `serve` or `proxy` with --metrics whether it is well: exit status 0, or 1 and why'
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l root -d 'The folder whose files are served. No path, and no link, leads out of it' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l listen -d 'Where to listen: unix:/path or unix:@name; with --tap tcp:IP:PORT, for clients on the network' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l tap -d 'Speak on a stack of this program\'s own instead of the kernel\'s, over this TAP device. It is made where there is none, which takes CAP_NET_ADMIN, and is gone with the program; its other side is the kernel\'s interface of that name' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l xdp -d 'The same over this network interface, past the kernel\'s IP (AF_XDP): all that arrives there is the stack\'s. It is up, with one queue that it receives by, and stays as it is; this takes root' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l addr -d 'An address of the stack and its network, such as 10.0.0.2/24 or fd00::2/64; may be given several times, of IPv4 and of IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l gateway -d 'Where the stack\'s packets for all other networks go: a router in a network of --addr. May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l route -d 'Where the stack\'s packets for one network go: to a router in a network of --addr, as in 10.1.0.0/16=10.0.0.9. May be given several times; of several networks that an address is in, the smallest counts' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l mtu -d 'Bytes of the TAP\'s longest packet, 68 to 65521; left out, what the device has (a new one: 1500)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l kernel-addr -d 'Give the kernel\'s side of the TAP this address, and set it up; left out, somebody else does (ip addr, ip link). May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l shards -d 'Have the stack be of so many shards, 1 to 64, each with a queue of the TAP\'s, a thread and a lock of its own: connections of different ones share nothing. A TAP that is there has to have as many queues (ip tuntap add ... multi_queue)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l config -d 'Take flags from a TOML file: keys are the names of flags without their dashes (`cache = "1G"`, `stats = true`). What is given here wins over it. Read again at SIGHUP: log-level, access-log, idle-timeout, head-timeout, send-timeout and grace change at once, and of what else changed it is told that it needs a restart' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l access-log -d 'Write a line for each request that was answered: to FILE, `journal` (systemd\'s) or `-` (standard output). A line that the disk is too slow for is left out, and counted (`log_dropped`): no request waits. SIGHUP opens FILE anew' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l access-log-format -d 'With --access-log: the form of its lines' -r -f -a "combined\t'As Apache and nginx have it, and behind that seconds, way and copies'
json\t'An object for each request'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l metrics -d 'Answer GET /metrics (for Prometheus) and GET /healthz on this address, to whoever can reach it. Health is 503 once the proxy was asked to stop, and a daemon answers no more then' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l takeover -d 'Meet the one of these programs that runs, at this unix socket, and take over its sockets; it finishes what it has and ends. Then, or where there is none, wait there for a successor. No client is refused meanwhile. (Under systemd, a .socket unit is the way)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l user -d 'Bind as root, and then be this user (names or numbers), with its groups or with GROUP as the first of them. All else is opened as that user: the files served, certificate, key, log, --config, and the socket of --takeover. Sockets with paths are given to it; to remove them at the end it needs their folder' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l log-level -d 'Say what is of this level or above, each line with its time (UTC) and level. Left out, the variable ONECOPY_LOG says it; without either, `info` as plain lines. (Systemd\'s journal is told levels in its own way)' -r -f -a "error\t'What ends the program'
warn\t'What the operator should mend'
info\t'What else happens to the program'
debug\t'What happens to each connection'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l transport -d 'Which sockets carry the answers' -r -f -a "onecopy\t'Shared memory where both sides can, the kernel\'s unix sockets otherwise'
kernel\t'The kernel\'s unix sockets only'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l file-send -d 'With --transport kernel: how a file\'s bytes enter the socket' -r -f -a "copy\t'pread into a buffer, then write: two kernel copies'
sendfile\t'sendfile: the page cache\'s pages by reference'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l policy -d 'With --transport onecopy: which stores put a file kept in memory before the proxy' -r -f -a "auto\t'The engine decides from size, buffer and reader'
cached\t'Ordinary stores'
nt\t'Non-temporal stores'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l lend -d 'With --transport onecopy: what a proxy of the same user may have lent instead of its bytes, to send it on from where it lies. Counted as `lent_bytes`: what the proxy then sends of it, the proxy counts' -r -f -a "auto\t'What is kept in memory (--cache), and files that lie in the kernel\'s page cache'
memory\t'What is kept in memory'
never\t'Nothing: each body is copied, with the stores of --policy'"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l cache -d 'Keep up to this many bytes of files in memory, the least recently asked for leaving first; up to as many again may be on their way to the proxy, or kept there for --revalidate. What was lent and a client still takes comes on top' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l revalidate -d 'What is kept in memory (--cache) is looked at again after this long, and so are the folders on the way to an open file; 0 looks at every request. What is done to an open file shows at the next request. A proxy gives what was lent to it to others for as long without asking, ten minutes at most' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l buffer -d 'Size of each backend connection\'s send buffer; left out, 256K over shared memory (a few of them fit a second-level cache) and 1M over the kernel' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l max-connections -d 'Most connections at once; who comes later gets 503' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l idle-timeout -d 'A connection without a request ends after this' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l head-timeout -d 'A request must be complete within this, or 408' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l send-timeout -d 'A peer that takes no byte for this long is given up' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l grace -d 'On SIGTERM or SIGINT (and SIGHUP, where there is no file to open again), answers in flight may take this long to finish. SIGINT (Ctrl-C) a second after that, or later, ends all at once; further signals else change nothing' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l die-with-parent -d 'Stop when the process that started this one is gone' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l cpu -d 'Stay on this CPU (for measurements)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l hot-set -d 'Walk a working set of this size around every body, and count how much slower it got' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l save-profile -d 'At the end, save what --policy auto has learned about the stores of this machine in the profile of `onecopy tune`, with which programs begin that are started later'
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l direct -d 'Also listen on ADDRESS.direct for client sockets that a proxy of the same user lends for one answer'
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l stats -d 'Answer GET /.onecopy/stats with the counters (JSON), as SIGUSR1 prints them, to whoever sends it to this socket'
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l listen -d 'Where clients connect, as IP:PORT or tcp:IP:PORT; port 0 takes a free one' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l tap -d 'Speak on a stack of this program\'s own instead of the kernel\'s, over this TAP device. It is made where there is none, which takes CAP_NET_ADMIN, and is gone with the program; its other side is the kernel\'s interface of that name' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l xdp -d 'The same over this network interface, past the kernel\'s IP (AF_XDP): all that arrives there is the stack\'s. It is up, with one queue that it receives by, and stays as it is; this takes root' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l addr -d 'An address of the stack and its network, such as 10.0.0.2/24 or fd00::2/64; may be given several times, of IPv4 and of IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l gateway -d 'Where the stack\'s packets for all other networks go: a router in a network of --addr. May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l route -d 'Where the stack\'s packets for one network go: to a router in a network of --addr, as in 10.1.0.0/16=10.0.0.9. May be given several times; of several networks that an address is in, the smallest counts' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l mtu -d 'Bytes of the TAP\'s longest packet, 68 to 65521; left out, what the device has (a new one: 1500)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l kernel-addr -d 'Give the kernel\'s side of the TAP this address, and set it up; left out, somebody else does (ip addr, ip link). May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l shards -d 'Have the stack be of so many shards, 1 to 64, each with a queue of the TAP\'s, a thread and a lock of its own: connections of different ones share nothing. A TAP that is there has to have as many queues (ip tuntap add ... multi_queue)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l config -d 'Take flags from a TOML file: keys are the names of flags without their dashes (`cache = "1G"`, `stats = true`). What is given here wins over it. Read again at SIGHUP: log-level, access-log, idle-timeout, head-timeout, send-timeout and grace change at once, and of what else changed it is told that it needs a restart' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l access-log -d 'Write a line for each request that was answered: to FILE, `journal` (systemd\'s) or `-` (standard output). A line that the disk is too slow for is left out, and counted (`log_dropped`): no request waits. SIGHUP opens FILE anew' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l access-log-format -d 'With --access-log: the form of its lines' -r -f -a "combined\t'As Apache and nginx have it, and behind that seconds, way and copies'
json\t'An object for each request'"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l metrics -d 'Answer GET /metrics (for Prometheus) and GET /healthz on this address, to whoever can reach it. Health is 503 once the proxy was asked to stop, and a daemon answers no more then' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l takeover -d 'Meet the one of these programs that runs, at this unix socket, and take over its sockets; it finishes what it has and ends. Then, or where there is none, wait there for a successor. No client is refused meanwhile. (Under systemd, a .socket unit is the way)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l user -d 'Bind as root, and then be this user (names or numbers), with its groups or with GROUP as the first of them. All else is opened as that user: the files served, certificate, key, log, --config, and the socket of --takeover. Sockets with paths are given to it; to remove them at the end it needs their folder' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l log-level -d 'Say what is of this level or above, each line with its time (UTC) and level. Left out, the variable ONECOPY_LOG says it; without either, `info` as plain lines. (Systemd\'s journal is told levels in its own way)' -r -f -a "error\t'What ends the program'
warn\t'What the operator should mend'
info\t'What else happens to the program'
debug\t'What happens to each connection'"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l tls-cert -d 'Speak TLS (1.2 and 1.3) to the clients: the certificate chain, PEM, the server\'s own first. Read again at SIGHUP' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l tls-key -d 'With --tls-cert: its private key, PEM, without a passphrase' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l backend -d 'The daemon\'s socket: unix:/path or unix:@name' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l transport -d 'Which sockets carry the answers' -r -f -a "onecopy\t'Shared memory where both sides can, the kernel\'s unix sockets otherwise'
kernel\t'The kernel\'s unix sockets only'"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l forward -d 'With --transport kernel: how a body crosses from backend to client' -r -f -a "copy\t'Read into a buffer, write from it: two kernel copies'
splice\t'Spliced through a pipe: references to the kernel\'s pages, no copy'"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l send-lent -d 'How a body that the daemon lends (`serve --lend`) goes to the client' -r -f -a "auto\t'What suits it: up to 64 KiB sendfile, then `splice` for files and for small parts of memory, and for other memory `map` or `splice`, as is found faster on what is sent'
sendfile\t'By reference, in the kernel\'s own pieces of 64 KiB'
splice\t'By reference through a pipe, up to 1 MiB in a piece'
map\t'Copied by the kernel out of a mapping, above 64 KiB; less goes by sendfile. What is not sealed memory is spliced, and so is less than half of it'"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l threads -d 'Threads, each with its own clients and backend connections; left out, one for each CPU' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l backends -d 'Most connections to the backend; a slow client holds one as long as its body lasts, unless the body is lent' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l queue -d 'Most requests waiting for a backend connection; who comes later gets 503' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l buffer -d 'Size of each backend connection\'s receive buffer; left out, 256K over shared memory (a few of them fit a second-level cache) and 1M over the kernel' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l max-clients -d 'Most clients at once; who comes later waits in the listen queue. Left out, 100000, or as many as the limit of open files leaves room for' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l idle-timeout -d 'A client without a request is let go after this' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l head-timeout -d 'A request head must be complete within this, or 408; and so must a body that is dropped and a TLS handshake, or the connection ends' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l send-timeout -d 'A client whose side of the connection acknowledges no byte for this long is given up; one that takes a few now and then is not' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l backend-timeout -d 'A backend that is silent for this long is given up: 504, or the body is broken off' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l max-line -d 'Longest request line, or 414; at most 64K' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l max-head -d 'Longest request head, or 431; at most 64K. It may have 64 fields' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l grace -d 'On SIGTERM or SIGINT (and SIGHUP, where there is no file to read or open again), answers in flight may take this long to finish. SIGINT (Ctrl-C) a second after that, or later, ends all at once; further signals else change nothing' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l die-with-parent -d 'Stop when the process that started this one is gone' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l cpu -d 'Stay on this CPU (for measurements)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l direct -d 'Lend a client\'s socket to the daemon (`serve --direct`, same user) for each body; the connection ends after it, since what is lent cannot be taken back'
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l trust-backend -d 'With --direct: keep the client\'s connection, trusting the daemon to have let go of it'
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l root -d 'Serve the files of this folder (the first 256 MiB of them) instead of files made for the demo' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l report -d 'Where the report goes: one HTML file with everything in it' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l rounds -d 'Rounds in which the ways take turns' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l json -d 'One JSON object a line on standard output instead of a table'
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l quick -d 'A quarter of the work, for a first look'
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s U -l unix -d 'A unix socket: a path, or @name. Shared memory carries the bytes where the peer is onecopy\'s, too' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l tap -d 'Speak on a stack of this program\'s own instead of the kernel\'s, over this TAP device. It is made where there is none, which takes CAP_NET_ADMIN, and is gone with the program; its other side is the kernel\'s interface of that name' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l xdp -d 'The same over this network interface, past the kernel\'s IP (AF_XDP): all that arrives there is the stack\'s. It is up, with one queue that it receives by, and stays as it is; this takes root' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l addr -d 'An address of the stack and its network, such as 10.0.0.2/24 or fd00::2/64; may be given several times, of IPv4 and of IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l gateway -d 'Where the stack\'s packets for all other networks go: a router in a network of --addr. May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l route -d 'Where the stack\'s packets for one network go: to a router in a network of --addr, as in 10.1.0.0/16=10.0.0.9. May be given several times; of several networks that an address is in, the smallest counts' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l mtu -d 'Bytes of the TAP\'s longest packet, 68 to 65521; left out, what the device has (a new one: 1500)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l kernel-addr -d 'Give the kernel\'s side of the TAP this address, and set it up; left out, somebody else does (ip addr, ip link). May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l shards -d 'Have the stack be of so many shards, 1 to 64, each with a queue of the TAP\'s, a thread and a lock of its own: connections of different ones share nothing. A TAP that is there has to have as many queues (ip tuntap add ... multi_queue)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l transport -d 'Who carries TCP, or UDP: the kernel, the kernel through io_uring (no privilege is needed), a stack of our own (--tap), or that one if it can be had and else the kernel through io_uring. Left out: a stack of our own with --tap, the kernel without' -r -f -a "kernel\t'The kernel\'s sockets'
kernel-uring\t'The kernel\'s TCP and UDP through io_uring, with our own sockets above it'
stack\t'A stack of our own'
auto\t'The latter if it can be had, else the kernel\'s through io_uring'"
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l send -d 'Send this file instead of standard input' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l recv -d 'Write what is received to this file instead of standard output; standard input is not read then' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s q -l quit -d 'End this long after what is sent has ended, though the peer has not' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s w -l timeout -d 'Give up connecting, or waiting for somebody to connect, after this long' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l devmem -d 'Receive into a device\'s memory (with -l), or send from it, over a stack of our own (--tap, or --pair) or the kernel\'s TCP (--transport kernel-uring). The only kind there is so far, opaque, is a stand-in: memory that no process maps, with no GPU behind it' -r -f -a "opaque\t'A memfd that no process maps'"
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l memory -d 'Bytes of that memory; left out, 64M' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l queue -d 'The first receive queue to bind; the connection\'s flow is steered to it' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l queues -d 'How many receive queues to bind. One more is left to all other flows' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l nic -d 'Have the NIC of this interface receive into the memory by itself, with --transport kernel-uring: --queue is a queue of its. It takes CAP_NET_ADMIN, a NIC that can, and /dev/udmabuf. Where it refuses, what is done instead is told, and why. (No hardware has been tried yet)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l validate -d 'Compare what is received with the pattern 1, 2 ... N-1, newline, and give up after 20 wrong bytes. (`yes $(echo -e \\\\x01\\\\x02\\\\x03\\\\x04\\\\x05\\\\x06)` makes that of 7.) With --generate: what is sent' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l generate -d 'Send so many bytes of the pattern of --validate' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l chunk -d 'Send in ranges of at most so many bytes, of which each send has as many as it takes' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s l -l listen -d 'Listen, and talk to the first who connects'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s u -l udp -d 'Datagrams: each read of standard input is one, of 16 KiB at most'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l sum -d 'Tell the SHA-256 of what was sent and received at the end, as sha256sum has it. A file is then copied through a buffer instead of being read to where it is sent from'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l json -d 'Tell at the end what passed as one JSON object on a line of standard error'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l save-profile -d 'With --unix: at the end, save what was learned about the stores of this machine in the profile of `onecopy tune`, with which programs begin that are started later. (Of a file that is sent without --sum, nothing is copied, and nothing learned)'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s v -l verbose -d 'Tell where it listens, to whom it is connected, and at the end what passed'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s d -l no-stdin -d 'Do not read standard input'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l no-shutdown -d 'At the end of what is sent, do not tell the peer before it has ended itself (as OpenBSD\'s nc does without -N)'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s N -d 'At the end of what is sent, tell the peer: as it is anyway'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l fail-on-linear -d 'Give up when bytes come that were not split from their headers'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l discard -d 'Look at nothing that is received: give the tokens back as they come'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l pair -d 'Be both sides, over a cable in this process: takes no privilege'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -l check -d 'Try what has to be refused and what has to work, a line each, over a cable in this process or with the kernel behind --tap'
complete -c onecopy -n "__fish_onecopy_using_subcommand nc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l tap -d 'The TAP that the stack is on. It is made where there is none' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l xdp -d 'Put it on this network interface instead, past the kernel\'s IP (AF_XDP): all that arrives there is the stack\'s. It is up, with one queue that it receives by, and stays as it is' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l addr -d 'An address of the stack and its network, such as 10.0.0.2/24 or fd00::2/64; may be given several times, of IPv4 and of IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l gateway -d 'Where the stack\'s packets for all other networks go: a router in a network of --addr. May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l route -d 'Where the stack\'s packets for one network go: to a router in a network of --addr, as in 10.1.0.0/16=10.0.0.9. May be given several times; of several networks that an address is in, the smallest counts' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l mtu -d 'Bytes of the TAP\'s longest packet, 68 to 65521; left out, what the device has (a new one: 1500)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l kernel-addr -d 'Give the kernel\'s side of the TAP this address, and set it up; left out, somebody else does (ip addr, ip link). May be given once for IPv4 and once for IPv6' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l shards -d 'Have the stack be of so many shards, 1 to 64, each with a queue of the TAP\'s, a thread and a lock of its own: connections of different ones share nothing. A TAP that is there has to have as many queues (ip tuntap add ... multi_queue)' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l echo -d 'Send back what comes to this port (RFC 862); may be given several times. All services together have 1024 connections at once; who comes later is let go' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l discard -d 'Throw away what comes to this port (RFC 863); may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l source -d 'Send lines without end to who connects to this port (RFC 864); may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l pcap -d 'Write all packets to this file, for Wireshark and tcpdump (pcapng)' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l netns -d 'Make a network namespace, with the kernel\'s side of the TAP in it, which gets --kernel-addr, or of IPv4 and of IPv6 the first address that is left in the stack\'s network'
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l trace -d 'Print a line for each packet'
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -l json -d 'One JSON object a line on standard output: when it is up, and at the end what it did'
complete -c onecopy -n "__fish_onecopy_using_subcommand stack" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand ss" -l pid -d 'Only the sockets of this process; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand ss" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand ss" -l json -d 'One JSON object a line for each socket, with every counter'
complete -c onecopy -n "__fish_onecopy_using_subcommand ss" -s v -l verbose -d 'Say what was passed over, and why'
complete -c onecopy -n "__fish_onecopy_using_subcommand ss" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand top" -l interval -d 'Time between two looks, 50ms or more' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand top" -l pid -d 'Only the sockets of this process; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand top" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand top" -l once -d 'Look twice, print what was done in between, by the second, and end; so too where there is no terminal'
complete -c onecopy -n "__fish_onecopy_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l report -d 'Write the figures with plots as one self-contained HTML file' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l record -d 'Append the figures to DIR/<date>-<machine>.csv' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l rounds -d 'Rounds after the warm-up' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l case -d 'Only cases whose name contains this; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l engine -d 'Only this engine and each case\'s baseline; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l worker -d 'Be a worker of the bench: a role and its parameters' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l quick -d 'Less work, the same shape: for a first look'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l smoke -d 'Least of all work, and a part of the cases: does it run at all?'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l json -d 'One JSON object a line on standard output instead of tables'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l list -d 'Name the rows and what they do'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l max-footprint -d 'The largest destination footprint to measure, in MiB; as much memory is used' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l output -d 'Save the profile here instead of $XDG_CONFIG_HOME/onecopy/tune.toml' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l show -d 'Show the profile that is saved, and measure nothing'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l dry-run -d 'Measure and print, but save nothing'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l quick -d 'Measure for a third of the time (4 seconds): a first look, not for keeps on a busy machine'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l json -d 'Print one JSON object instead of tables'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -l json -d 'One JSON object instead of the report'
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand health" -l timeout -d 'How long each step may take: to connect, to be asked, and to answer' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand health" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand health" -s h -l help -d 'Print help'
