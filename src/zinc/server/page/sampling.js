// The settings of a conversation, and the request fields they become. An empty setting is left out,
// so that the server's default applies.

// name in the API, label, minimum, maximum, step, description
const FIELDS = [
  ["temperature", "Temperature", 0, 5, 0.05, "0 always takes the most likely token"],
  ["top_p", "Top-p", 0, 1, 0.01, "keeps the most likely tokens up to this total probability"],
  ["top_k", "Top-k", 0, 1000, 1, "keeps this number of the most likely tokens; 0 is off"],
  ["min_p", "Min-p", 0, 1, 0.01, "keeps tokens above this fraction of the top probability"],
  ["repeat_penalty", "Repeat penalty", 0.5, 2, 0.01, "1 is off"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "0 is off"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "0 is off"],
  ["dry_multiplier", "DRY multiplier", 0, 5, 0.1, "penalises repeated phrases; 0 is off"],
  ["max_tokens", "Maximum tokens", 1, 1_000_000, 1, "of the answer"],
  ["seed", "Seed", 0, 4_294_967_294, 1, "the same seed repeats an answer"],
];

/** The numeric settings: {name, label, min, max, step, tip}. */
export const SAMPLING = FIELDS.map(([name, label, min, max, step, tip]) => {
  return { name, label, min, max, step, tip };
});

/** Returns the request fields for these settings. */
export function requestFields(settings) {
  const fields = {};
  for (const { name } of SAMPLING) {
    if (typeof settings[name] === "number") fields[name] = settings[name];
  }
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) fields.stop = stops;
  if (settings.thinking === "on") fields.enable_thinking = true;
  if (settings.thinking === "off") fields.enable_thinking = false;
  if (typeof settings.thinking_budget === "number" && settings.thinking !== "off") {
    fields.thinking_budget = settings.thinking_budget;
  }
  return fields;
}

/**
 * Parses the tools in a settings field: OpenAI's list of functions, or an empty text.
 * Throws Error with a message for the user.
 */
export function readTools(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch {
    throw new Error("The tools are not JSON.");
  }
  if (!Array.isArray(tools)) throw new Error("The tools must be a JSON list.");
  return tools.map((tool, i) => {
    const described = tool?.function ?? tool;
    if (typeof described?.name !== "string" || !described.name) {
      throw new Error(`Tool ${i + 1} has no name.`);
    }
    return tool.function ? tool : { type: "function", function: tool };
  });
}
