-- Any other write. If the first statement changes no row, roll back and stop.
INSERT INTO fences (name, fence) VALUES ('account:7', :fence)
    ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence;
INSERT INTO entries (account, amount) VALUES (7, :amount);
