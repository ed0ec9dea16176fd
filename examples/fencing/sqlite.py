"""Runs the SQL of its input in an SQLite database, as database.rs says. Arguments: a file, and values as name=number."""
import sqlite3
import sys

file, *arguments = sys.argv[1:]
pairs = (argument.split("=") for argument in arguments)
values = {name: int(number) for name, number in pairs}
check, _, rest = sys.stdin.read().partition(";\n")

database = sqlite3.connect(file, isolation_level=None)
database.execute("BEGIN")
if database.execute(check, values).rowcount > 0:
    for row in database.execute(rest, values):
        print(*row)
    database.execute("COMMIT")
    print("accepted")
else:
    database.execute("ROLLBACK")
    print("rejected")
