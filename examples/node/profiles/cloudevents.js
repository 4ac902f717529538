// CloudEvents 1.0 with the NATS protocol binding: attributes as ce- headers (binary mode), or all in the body.

import { Malformed, header, objectIn, required } from "../reading.js";

export const cloudevents = {
  stream: "SHOP_EVENTS",
  filter: "shop.event.>",
  durable: "node__from_shop",

  write({ id, number, time }) {
    const headers = {
      "ce-specversion": "1.0",
      "ce-id": id,
      "ce-source": "/node",
      "ce-type": "order_placed",
      "ce-time": time,
      "Content-Type": "application/json",
    };
    return { subject: "shop.event.order_placed.v1", msgId: id, headers, body: { order_id: `node-${id}`, cents: number } };
  },

  read(message) {
    const structured = header(message, "Content-Type")?.startsWith("application/cloudevents+json");
    const event = structured ? objectIn(message) : { ...attributes(message), data: objectIn(message) };
    if (event.specversion !== "1.0") throw new Malformed("not CloudEvents 1.0");
    const id = required(event, "id", "string");
    return {
      id,
      key: `${required(event, "source", "string")} ${id}`, // two sources may use the same id
      type: required(event, "type", "string"),
      version: Number(event.eventversion ?? 1),
      payload: required(event, "data"),
    };
  },
};

function attributes(message) {
  const names = (message.headers?.keys() ?? []).filter((name) => name.toLowerCase().startsWith("ce-"));
  // The binding percent-encodes what a header cannot hold.
  const value = (name) => decodeURIComponent(header(message, name));
  return Object.fromEntries(names.map((name) => [name.slice(3).toLowerCase(), value(name)]));
}
