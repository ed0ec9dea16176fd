-- A read for a later write. If the first statement changes no row, roll back and stop.
UPDATE accounts SET fence = :fence WHERE id = 7 AND fence <= :fence;
SELECT balance FROM accounts WHERE id = 7;
