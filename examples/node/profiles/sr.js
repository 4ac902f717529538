// The MessageEnvelope 1.0: everything in the body, deduplicated by its idempotency_key.

import { createHash, randomUUID } from "node:crypto";
import { Malformed, objectIn, required } from "../reading.js";

const SCHEMA_VERSIONS = ["1.0"];

export const sr = {
  stream: "sr-events",
  filter: "sr.events.>",
  durable: "node__sr-events",

  newId: () => `evt_${randomUUID().replaceAll("-", "").toUpperCase()}`,

  write({ id, number, time }) {
    const message = {
      schema_version: "1.0",
      message_type: "LoopCreated",
      message_id: id,
      correlation_id: `req_node_${number}`,
      causation_id: null,
      timestamp: time,
      actor_id: "node-example",
      actor_kind: "SYSTEM",
      payload: { loop_id: `loop_${id}`, goal: `number ${number}` },
    };
    // The same message has the same key however often it is sent.
    const key = `sha256:${createHash("sha256").update(JSON.stringify(message)).digest("hex")}`;
    return { subject: "sr.events.loop", msgId: key, body: { ...message, idempotency_key: key } };
  },

  read(message) {
    const body = objectIn(message);
    // Unknown fields are ignored; an unknown version is not.
    if (!SCHEMA_VERSIONS.includes(body.schema_version)) throw new Malformed("an unsupported schema_version");
    return {
      key: required(body, "idempotency_key", "string"),
      id: required(body, "message_id", "string"),
      type: required(body, "message_type", "string"),
      actor: `${required(body, "actor_kind", "string")} ${required(body, "actor_id", "string")}`,
      payload: required(body, "payload", "object"),
    };
  },
};
