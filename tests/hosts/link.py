# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a link of given speed between them.

The link is a process that takes frames from a TAP device in one namespace and puts them out of one in the other, after
the time that they would take: so it needs no queueing discipline of the kernel's. Needs root, iproute2 and
/dev/net/tun."""

import collections
import fcntl
import itertools
import multiprocessing
import os
import shutil
import select
import struct
import subprocess
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 0x0002, 0x1000
FRAME = 16000  # bytes at most: few frames, which Python can hand on at a gigabit
WAITS = 0.2    # seconds of frames that a sender's side of the link holds; more are lost


def lacking():
    """What this machine lacks; "" if it has all."""
    if os.geteuid() != 0:
        return "root"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun"
    if not shutil.which("ip"):
        return "ip (iproute2)"
    made = subprocess.run(["ip", "netns", "add", f"hosts-{os.getpid()}"], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces ({made.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", f"hosts-{os.getpid()}"], check=True)
    return ""


def hand_on(taps, bits_per_second, seconds, cut):
    """Never returns. taps: descriptors of both ends. cut: nothing passes while it is not 0."""
    waiting, free = [collections.deque(), collections.deque()], [0.0, 0.0]
    while True:
        due = min((frames[0][0] for frames in waiting if frames), default=None)
        ready = select.select(taps, [], [], None if due is None else max(0.0, due - time.monotonic()))[0]
        now = time.monotonic()
        for side, tap in enumerate(taps):
            while tap in ready:
                try:
                    frame = os.read(tap, FRAME + 100)
                except BlockingIOError:
                    break
                start = max(now, free[side])
                if cut.value or start - now > WAITS:
                    continue
                free[side] = start + (8 * len(frame) / bits_per_second if bits_per_second else 0)
                waiting[side].append((free[side] + seconds, frame))
            frames = waiting[side]
            while frames and frames[0][0] <= time.monotonic():
                try:
                    os.write(taps[1 - side], frames.popleft()[1])
                except OSError:
                    pass  # the other end is down, or has no room: the frame is lost


class Link:
    """With a limit of bits/s, 0 for none, and the seconds that a frame is under way, each way."""

    numbers = itertools.count()  # of the links that this process has made

    def __init__(self, bits_per_second=0, seconds=0.0):
        self.number = next(Link.numbers)
        self.names = [f"hosts-{os.getpid()}-{self.number}{side}" for side in "ab"]
        self.addresses = ["10.213.0.1", "10.213.0.2"]
        self.taps, self.process = [], None
        self.cut = multiprocessing.Value("i", 0)
        try:
            for side, name in enumerate(self.names):
                self.add(side, name)
        except Exception:
            self.__exit__()
            raise
        self.process = multiprocessing.Process(target=hand_on, args=(self.taps, bits_per_second, seconds, self.cut))
        self.process.daemon = True
        self.process.start()

    def add(self, side, name):
        def ip(*words):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        device = f"tap{os.getpid() % 100000}{self.number % 1000}{'ab'[side]}"
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self.taps.append(tap)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
        ip("netns", "add", name)
        ip("link", "set", device, "netns", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", device, "mtu", str(FRAME))
        ip("-n", name, "addr", "add", self.addresses[side] + "/30", "dev", device)
        ip("-n", name, "link", "set", device, "up")

    def words(self, side):
        """In front of a command line that is to run on one side."""
        return ["ip", "netns", "exec", self.names[side]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.join()
        for tap in self.taps:
            os.close(tap)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
