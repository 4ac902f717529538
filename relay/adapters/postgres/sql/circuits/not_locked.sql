-- Of several rows: a statement that waits for one while it holds others might deadlock.
      SKIP LOCKED
