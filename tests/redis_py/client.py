"""redis-py's Lock, for the tests beside it: a command a line in, `yes` or `no` a line out.

Called with the server's URL and the lock's name. It ends with its standard input.
"""

import sys

import redis
from redis.exceptions import LockError

# How long a wait may take that is bound to end.
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
    """False where the lock was not this client's any more; any other error ends it, and with it the test."""
    try:
        action()
    except LockError:
        return False
    return True


main(*sys.argv[1:])
