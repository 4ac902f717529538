// Asks another service, and waits for its one answer: node query.js SUBJECT JSON
//
// Prints the answer; null if nothing was found. Ends with status 1 if the query was refused or nobody answers.

import { connectToNats } from "./connection.js";

const TIMEOUT_MS = 5_000;

const [subject, question] = process.argv.slice(2);
const nats = await connectToNats();
try {
  const answer = await nats.request(subject, question, { timeout: TIMEOUT_MS });
  // A refusal has no body but these headers, as NATS services have them.
  const code = answer.headers?.get("Nats-Service-Error-Code");
  if (code) throw new Error(`refused: ${code} ${answer.headers.get("Nats-Service-Error")}`);
  console.log(JSON.stringify(answer.json()));
} catch (error) {
  console.error(`no answer: ${error.message}`);
  process.exitCode = 1;
} finally {
  await nats.drain();
}
