// Publishes events, as a service of another team does: node producer.js PROFILE [COUNT]
//
// Prints the id of each event once the stream has stored it. A service that changes rows of its own as well writes an
// outbox row instead, and lets the relay publish: see README.md.

import { randomUUID } from "node:crypto";
import { headers as newHeaders } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";
import { connectToNats } from "./connection.js";
import { profileCalled } from "./profiles.js";

const profile = profileCalled(process.argv[2] ?? "default");
const count = Number(process.argv[3] ?? 1);
const nats = await connectToNats();
const stream = jetstream(nats);

try {
  for (let number = 1; number <= count; number += 1) {
    console.log(await publish(number));
  }
} finally {
  await nats.drain();
}

async function publish(number) {
  const event = { id: profile.newId?.() ?? randomUUID(), number, time: new Date().toISOString() };
  const { subject, msgId, headers = {}, body } = profile.write(event);
  const sent = newHeaders();
  for (const [name, value] of Object.entries(headers)) sent.set(name, value);
  // Waits for the stream's answer. Without one, publish again with the same id: the stream keeps one of them.
  await stream.publish(subject, JSON.stringify(body), {
    msgID: msgId,
    headers: sent,
    expect: { streamName: profile.stream },
  });
  return event.id;
}
