// Numbers and times as people read them, in the language of the browser.

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
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** Whole seconds, "" below the first: for a clock that runs. */
export function seconds(ms) {
  return ms < 1000 ? "" : `${Math.floor(ms / 1000)} s`;
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** "Today", "Yesterday", "Last 7 days" or a month. */
export function period(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const day = 24 * 3600 * 1000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 6 * day) return "Last 7 days";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}
