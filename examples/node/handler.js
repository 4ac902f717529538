// A handler service in Node: POST /handle as the relay calls it. PORT=8000 node handler.js EFFECTS_FILE
//
// 200: done. 409: done before. 422: will never work. 401: not signed, where HANDLER_SECRET is set. 503: not now.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { Effects } from "./effects.js";

const MAX_BODY_BYTES = 8 * 1024 * 1024;
const MAX_AGE_SECONDS = 300;

/** The events that are handled here: each checks its payload, and says what the effect is. */
const events = {
  "vibe_created.v1": ({ title }) => {
    if (typeof title !== "string") throw new Poison("a vibe without title");
    return { title };
  },
};

class Poison extends Error {}

const effects = new Effects(process.argv[2] ?? "effects.jsonl");
const keys = (process.env.HANDLER_SECRET ?? "").split(" ").filter(Boolean).map(asKey);

const server = createServer(async (request, response) => {
  const { status, reason } = await answer(request);
  // The relay keeps this header of a failure: so no data there.
  response.writeHead(status, reason ? { "Relay-Reason": encodeURIComponent(reason) } : {}).end();
});
server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => console.log("ready"));
process.once("SIGTERM", () => server.close());

async function answer(request) {
  if (request.method === "GET") return { status: request.url === "/healthz" ? 204 : 404 };
  try {
    const body = await bodyOf(request);
    if (keys.length && !isSigned(request.headers, body)) return { status: 401, reason: "not signed by the relay" };
    const call = read(body);
    return { status: handle(call, keyOf(request.headers, call)) ? 200 : 409 };
  } catch (error) {
    if (error instanceof Poison) return { status: 422, reason: error.message };
    console.error(error);
    return { status: 503, reason: "try again" };
  }
}

/** The text that copies of a message share. Its id is that of another message, too, in another source for example. */
function keyOf(headers, { message_id }) {
  return (keys.length ? headers["webhook-id"] : headers["idempotency-key"]) ?? message_id;
}

/** Returns whether the effect is new. Effect and key are kept together: a repeat finds the key. */
function handle({ message_id, event_type, event_version, payload }, key) {
  const name = `${event_type}.v${event_version}`;
  if (!Object.hasOwn(events, name)) throw new Poison("this event is not handled here");
  return effects.once(key, { id: message_id, type: event_type, ...events[name](payload) });
}

function read(body) {
  let call;
  try {
    call = JSON.parse(body.toString("utf8"));
  } catch {
    throw new Poison("the body is not JSON");
  }
  const { message_id, event_type, payload } = Object(call);
  if (typeof message_id !== "string" || !message_id) throw new Poison("message_id is missing");
  if (typeof event_type !== "string") throw new Poison("event_type is missing");
  if (payload === null || typeof payload !== "object" || Array.isArray(payload)) throw new Poison("payload is no object");
  return call;
}

async function bodyOf(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size > MAX_BODY_BYTES) throw new Poison("the body is too large");
    parts.push(part);
  }
  return Buffer.concat(parts);
}

/** Standard Webhooks: HMAC-SHA256 over "id.timestamp.body", with any of the keys that both sides know. */
function isSigned(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": time, "webhook-signature": given = "" } = headers;
  if (!(Math.abs(Date.now() / 1000 - Number(time)) <= MAX_AGE_SECONDS)) return false;
  const wanted = keys.map((key) => createHmac("sha256", key).update(`${id}.${time}.`).update(body).digest());
  const found = given.split(" ").map((one) => Buffer.from(one.replace(/^v1,/, ""), "base64"));
  return wanted.some((good) => found.some((one) => one.length === good.length && timingSafeEqual(one, good)));
}

function asKey(secret) {
  return secret.startsWith("whsec_") ? Buffer.from(secret.slice(6), "base64") : Buffer.from(secret);
}
