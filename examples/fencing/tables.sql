-- `accounts` has a column for the fence. The fence of `entries` is in `fences`, by the name of the lock.
CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
CREATE TABLE entries (account BIGINT NOT NULL, amount BIGINT NOT NULL);
CREATE TABLE fences (name VARCHAR(255) PRIMARY KEY, fence BIGINT NOT NULL);
INSERT INTO accounts (id, balance) VALUES (7, 100);
