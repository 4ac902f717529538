// The default envelope: the body is the request that an HTTP handler gets, payload inside.

import { Malformed, idFrom, objectIn, required } from "../reading.js";

export const byDefault = {
  stream: "VIBESPRO_EVENTS",
  filter: "vibespro.event.>",
  durable: "node__from_vibespro",

  write({ id, number, time }) {
    const subject = "vibespro.event.vibe_created.v1";
    const body = {
      message_id: id,
      subject,
      event_type: "vibe_created",
      event_version: 1,
      occurred_at: time,
      payload: { title: `a vibe from Node, number ${number}` },
    };
    // Events of one key keep their order at consumers that ask for it.
    return { subject, msgId: id, headers: { "Relay-Partition-Key": `vibe:${number % 7}` }, body };
  },

  read(message) {
    const body = objectIn(message);
    const id = body.message_id ?? idFrom(message);
    if (typeof id !== "string") throw new Malformed("the message has no id");
    return {
      id,
      type: required(body, "event_type", "string"),
      version: required(body, "event_version", "number"),
      payload: required(body, "payload"),
    };
  },
};
