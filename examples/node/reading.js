// Read what strangers send. Malformed says that a message will never be readable.

export class Malformed extends Error {}

/** The body as an object. */
export function objectIn(message) {
  let body;
  try {
    body = message.json();
  } catch {
    throw new Malformed("the body is not JSON");
  }
  if (body === null || typeof body !== "object" || Array.isArray(body)) throw new Malformed("the body is no object");
  return body;
}

/** A field that must be there, of a type if one is given. */
export function required(fields, name, type) {
  const value = fields[name];
  if (value === undefined || (type && typeof value !== type)) throw new Malformed(`${name} is missing or of no use`);
  return value;
}

/** A header, or undefined. Names of headers are read in any case. */
export function header(message, name) {
  const wanted = name.toLowerCase();
  const key = message.headers?.keys().find((found) => found.toLowerCase() === wanted);
  return key && message.headers.get(key);
}

/** The event's id from Nats-Msg-Id. A replay by jetrelay has the id and ".1", ".2" and so on: it is the same event. */
export function idFrom(message) {
  const id = header(message, "Nats-Msg-Id");
  const replay = `.${header(message, "Relay-Generation")}`;
  if (id?.endsWith(replay)) return id.slice(0, -replay.length);
  return id?.replace(/^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[1-9][0-9]{0,8}$/i, "$1");
}
