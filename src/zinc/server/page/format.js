// Formatting of numbers and times in the language of the browser.

const FILE_NAME_LENGTH = 60;

const whole = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

export function count(n, noun) {
  return `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
}

export function integer(n) {
  return whole.format(Math.round(n));
}

export function rate(tokensPerSecond) {
  return `${short.format(tokensPerSecond)} tokens/s`;
}

export function duration(ms) {
  if (ms < 995) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** Formats a running time in whole seconds; "" during the first second. */
export function seconds(ms) {
  return ms < 1000 ? "" : `${Math.floor(ms / 1000)} s`;
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** Returns the group of a date: "Today", "Yesterday", "Last 7 days" or a month. */
export function period(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const day = 24 * 3600 * 1000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 6 * day) return "Last 7 days";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

/**
 * Turns a title into a file name without extension: letters, digits, single spaces, "-" and "_",
 * and dots between them. Returns "" if nothing of the title is left.
 */
export function fileName(title) {
  const plain = title.replace(/[^\p{L}\p{M}\p{N} ._-]+/gu, " ").replace(/\s+/g, " ");
  const words = plain.replace(/\.{2,}/g, ".").replace(/^[ ._-]+|[ ._-]+$/g, "");
  if (words.length <= FILE_NAME_LENGTH) return words;
  return words.slice(0, FILE_NAME_LENGTH).replace(/ [^ ]*$/, "").replace(/[ ._-]+$/, "");
}
