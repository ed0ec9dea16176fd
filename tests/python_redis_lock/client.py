"""A client of one lock that uses python-redis-lock, for the tests of leasehold.

It reads one command a line, and replies to each with a line, `yes` or `no`. The arguments are the server's URL and the
lock's key. The program ends when its standard input ends.
"""

import logging
import math
import sys

import redis
import redis_lock

# python-redis-lock puts this in front of each name.
PREFIX = "lock:"
# The time limit of a wait that must end, in seconds.
PATIENCE = 30


def main(url, key):
    # A test finds this client by its key in the server's list of clients.
    server = redis.Redis.from_url(url, client_name=key, socket_timeout=PATIENCE)
    name = key.removeprefix(PREFIX)
    # The package logs each try that finds the lock held.
    logging.getLogger("redis_lock").setLevel(logging.ERROR)
    lock = None
    for line in sys.stdin:
        verb, *ttl_ms = line.split()
        # The package rounds down to whole seconds. It would send `EX 0`, which is an error.
        ttl = math.ceil(int(ttl_ms[0]) / 1000) if ttl_ms else None
        if verb == "hello":
            done = server.ping()
        elif verb in ("acquire", "wait"):
            wanted = redis_lock.Lock(server, name, expire=ttl)
            done = wanted.acquire(blocking=verb == "wait")
            if done:
                lock = wanted
        elif verb == "extend":
            done = succeeds(lambda: lock.extend(ttl))
        elif verb == "release":
            done = succeeds(lock.release)
        elif verb == "reset":
            redis_lock.Lock(server, name).reset()
            done = True
        else:
            sys.exit(f"no such command: {line!r}")
        print("yes" if done else "no", flush=True)


def succeeds(action):
    """Returns False if this client no longer holds the lock. Any other error ends the program, and so the test."""
    try:
        action()
    except redis_lock.NotAcquired:
        return False
    return True


main(*sys.argv[1:])
