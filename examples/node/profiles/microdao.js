// MicroDAO: the topic says what happened, the body is the payload, Nats-Msg-Id is the id of the outbox row.

import { randomUUID } from "node:crypto";
import { Malformed, idFrom, objectIn } from "../reading.js";

export const microdao = {
  stream: "STREAM_PAYOUT",
  filter: "payout.>",
  durable: "node__payout",

  newId: () => `payout-${randomUUID()}`,

  write({ id, number }) {
    return { subject: "payout.generated", msgId: id, body: { payout_id: `p_${id}`, team_id: `t_${number % 7}` } };
  },

  read(message) {
    const id = idFrom(message);
    if (!id) throw new Malformed("the message has no id");
    return { id, type: message.subject, payload: objectIn(message) };
  },
};
