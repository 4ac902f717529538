-- Of a claim in an ordered subscription: a message that has a key is claimed only when it is its turn.
  AND (i.order_key IS NULL OR (
      EXISTS (SELECT FROM relay_its_turn(i.message_id, i.subscription, i.order_key, i.stream, i.order_seq))
      AND (i.requeues = 0
           OR NOT EXISTS (SELECT FROM relay_another_runs(i.message_id, i.subscription, i.order_key)))))
