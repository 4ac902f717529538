-- Of an ordered subscription: a message that has a key is tried only when it is its turn.
      AND (i.order_key IS NULL OR EXISTS (
          SELECT FROM relay_its_turn(i.message_id, i.subscription, i.order_key, i.stream, i.order_seq)))
