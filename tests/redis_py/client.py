"""A client of one lock that uses redis-py, for the tests of leasehold.

It reads one command a line, and replies to each with a line, `yes` or `no`. The arguments are the server's URL and the
lock's name. The program ends when its standard input ends.
"""

import sys

import redis
from redis.exceptions import LockError

# The time limit of a wait that must end, in seconds.
PATIENCE = 30


def main(url, name):
    server = redis.Redis.from_url(url, socket_timeout=PATIENCE)
    lock = None
    for line in sys.stdin:
        verb, *ttl_ms = line.split()
        ttl = int(ttl_ms[0]) / 1000 if ttl_ms else None
        if verb == "hello":
            done = server.ping()
        elif verb in ("acquire", "wait"):
            wanted = redis.lock.Lock(server, name, timeout=ttl, sleep=0.01)
            if verb == "wait":
                done = wanted.acquire(blocking_timeout=PATIENCE)
            else:
                done = wanted.acquire(blocking=False)
            if done:
                lock = wanted
        elif verb == "extend":
            done = succeeds(lambda: lock.extend(ttl, replace_ttl=True))
        elif verb == "release":
            done = succeeds(lock.release)
        else:
            sys.exit(f"no such command: {line!r}")
        print("yes" if done else "no", flush=True)


def succeeds(action):
    """Returns False if this client no longer holds the lock. Any other error ends the program, and so the test."""
    try:
        action()
    except LockError:
        return False
    return True


main(*sys.argv[1:])
