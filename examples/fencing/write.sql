-- A write. If it changes no row, stop.
UPDATE accounts SET balance = :balance, fence = :fence WHERE id = 7 AND fence <= :fence;
