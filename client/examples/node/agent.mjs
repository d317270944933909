// An agent in JavaScript, on node's standard library alone: the wire is not Python's.
// Usage: node agent.mjs SOCKET SESSION.  A scripted model asks for one addition; run again after a kill, it goes on.
import { connect } from "node:net";
import { createInterface } from "node:readline";

const [socketPath, id] = process.argv.slice(2);
const socket = connect(socketPath);
const waiting = new Map();
let calls = 0;

createInterface({ input: socket }).on("line", (line) => {
  const { id: call, result, error } = JSON.parse(line);
  const { resolve, reject } = waiting.get(call);
  waiting.delete(call);
  error ? reject(Object.assign(new Error(error.message), error.data)) : resolve(result);
});
socket.on("close", () => waiting.forEach(({ reject }) => reject(new Error("the daemon is gone"))));

const rpc = (method, params) =>
  new Promise((resolve, reject) => {
    waiting.set(++calls, { resolve, reject });
    socket.write(JSON.stringify({ jsonrpc: "2.0", id: calls, method, params }) + "\n");
  });

// A checkpoint that fails throws: no request is sent and no body runs after it.
let writer, seq;
const record = async (method, events, more = {}, built = 0) => {
  const sent = await rpc(method, { id, writer, events, expectedSeq: seq, ...more });
  seq += events.length + built; // the daemon builds the event of checkpoint.tool and checkpoint.turnEnd
  return sent;
};

const model = (messages) => {
  const last = messages.at(-1).content[0];
  return last.type === "tool-result"
    ? [{ type: "text", text: `The tool said: ${last.content[0].text}` }]
    : [{ type: "tool-call", id: `sum-${seq}`, name: "add", arguments: '{"a": 2, "b": 40}' }];
};
const tools = { add: ({ a, b }) => String(a + b) };
const message = (role, source, content) => ({ id: crypto.randomUUID(), role, source, content });

async function open() {
  const opened = await rpc("session.open", { id, access: "write" }).catch((error) => {
    if (error.kind !== "SESSION_NOT_FOUND") throw error;
    return rpc("session.create", { id });
  });
  ({ writer } = opened);
  const recovered = await rpc("session.recover", { id, writer }); // what a killed agent left open is closed here
  for (const repair of recovered.repairs) console.log(`${repair.code} ${repair.callId}`);
  seq = recovered.repairs.length || recovered.closers.length ? recovered.nextSeq : opened.session.nextSeq;
  return opened.session.turns + 1;
}

async function step(turn, number, prompts) {
  const header = { config: { provider: "scripted", model: "adder-1" } };
  const at = { turn, step: number };
  const begun = [{ type: "step/start", data: at }, ...prompts.map((data) => ({ type: "user/message", data }))];
  await record("checkpoint.request", [...begun, { type: "request/header", data: { header, reason: "change" } }]);
  const answer = model((await rpc("session.messages", { id })).messages);
  const source = { kind: "model", ...header.config };
  await record("session.append", [{ type: "assistant/message", data: { ...at, message: message("assistant", source, answer) } }]);
  for (const { id: callId, name, arguments: text } of answer.filter(({ type }) => type === "tool-call")) {
    const go = await record("checkpoint.tool", [], { callId, name, arguments: text }, 1);
    if (go.decision !== "DISPATCH") throw new Error(go.decision);
    const content = [{ type: "text", text: tools[name](JSON.parse(text)) }];
    const told = message("user", { kind: "tool", callId }, [{ type: "tool-result", toolCallId: callId, content }]);
    await record("session.append", [{ type: "tool/result", data: { ...at, message: told }, sourceEventSeqs: [go.callSeq] }]);
  }
  await record("checkpoint.postStep", [{ type: "step/end", data: at }]);
  return answer[0];
}

const turn = await open();
await record("session.append", [{ type: "turn/start", data: { turn } }]);
let said = await step(turn, 1, [message("user", { kind: "user" }, [{ type: "text", text: "What is 2 and 40?" }])]);
for (let number = 2; said.type === "tool-call"; number++) said = await step(turn, number, []);
await record("checkpoint.turnEnd", [], { reason: { kind: "completed" } }, 1);
await rpc("session.close", { id, writer });
console.log(said.text);
socket.end();
