// Reads events from a stream without a relay of its own: node consumer.js PROFILE EFFECTS_FILE
//
// Acknowledges by hand, after the effect; does nothing twice; asks again for what it could not do; gives up what nobody
// can read. Ends on SIGTERM, after the message in hand.

import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { nanos } from "@nats-io/transport-node";
import { connectToNats } from "./connection.js";
import { Effects } from "./effects.js";
import { profileCalled } from "./profiles.js";

const RETRY_MS = 1_000;

const profile = profileCalled(process.argv[2] ?? "default");
const effects = new Effects(process.argv[3] ?? "effects.jsonl");
const nats = await connectToNats();

const messages = await (await durable()).consume({ max_messages: 100 });
process.once("SIGTERM", () => messages.stop());
console.log("ready");
for await (const message of messages) {
  await settle(message);
}
await nats.drain();

/** The durable consumer: the server remembers under its name how far we have come. */
async function durable() {
  const manager = await jetstreamManager(nats);
  await manager.consumers.add(profile.stream, {
    durable_name: profile.durable,
    filter_subject: profile.filter,
    ack_policy: AckPolicy.Explicit,
    ack_wait: nanos(30_000),
  });
  return jetstream(nats).consumers.get(profile.stream, profile.durable);
}

async function settle(message) {
  let event;
  try {
    event = profile.read(message);
  } catch (error) {
    console.error(`message ${message.seq} is given up: ${error.message}`);
    message.term(error.message);
    return;
  }
  try {
    effects.once(event.key ?? event.id, { ...event, subject: message.subject });
    await message.ackAck(); // waits until the server knows
  } catch (error) {
    console.error(`message ${message.seq} comes again: ${error.message}`);
    message.nak(RETRY_MS);
  }
}
