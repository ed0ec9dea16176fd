// A client of one lock that uses node-redlock, for the tests of leasehold. It reads one command a line, and replies to
// each with a line, `yes` or `no`.
//
// The arguments are the URLs of the servers, separated by commas, and the lock's name. The program ends when its
// standard input ends. The commands are `hello`, `acquire MS`, `extend MS` and `release`.
"use strict";

const readline = require("node:readline");
const { default: Redis } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

async function main(urls, name) {
  const servers = urls.split(",").map(connection);
  // A server that is down does not end the program: node-redlock needs only a majority.
  await Promise.allSettled(servers.map((server) => server.connect()));
  const locks = new Redlock(servers, { retryCount: 0 });
  let lock;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ttl] = line.split(" ");
    let done = true;
    if (verb === "acquire") {
      done = await succeeds(async () => (lock = await locks.acquire([name], Number(ttl))));
    } else if (verb === "extend") {
      done = await succeeds(async () => (lock = await lock.extend(Number(ttl))));
    } else if (verb === "release") {
      done = await succeeds(() => lock.release());
    } else if (verb !== "hello") {
      throw new Error(`no such command: ${line}`);
    }
    console.log(done ? "yes" : "no");
  }
  servers.forEach((server) => server.disconnect());
}

// Returns a client of a server. Its requests fail at once while there is no connection.
function connection(url) {
  const server = new Redis(url, { lazyConnect: true, enableOfflineQueue: false, maxRetriesPerRequest: 0 });
  // An error event that nobody handles would end the program. The requests fail too, and node-redlock counts them.
  server.on("error", () => {});
  return server;
}

// Returns false if this client does not hold the lock. Any other error ends the program, and so the test.
async function succeeds(action) {
  try {
    await action();
  } catch (error) {
    if (error instanceof ExecutionError && (await isRefusal(error))) {
      return false;
    }
    throw error;
  }
  return true;
}

// Returns whether a server refused the request. An extension of an expired lock has no attempts: node-redlock asks no
// server.
async function isRefusal(error) {
  const attempts = await Promise.all(error.attempts);
  const reasons = attempts.flatMap(({ votesAgainst }) => [...votesAgainst.values()]);
  return attempts.length === 0 || reasons.some((reason) => reason instanceof ResourceLockedError);
}

main(...process.argv.slice(2));
