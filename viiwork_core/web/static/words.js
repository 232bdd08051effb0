// Words: figures as people read them. What is not known is a dash, and never a nought.

export const DASH = "–";

/** A number that came from outside, or null. Nothing here is ever below nought. */
export function number(value) {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : null;
}

export function count(value) {
  const known = number(value);
  return known === null ? DASH : known.toLocaleString("en");
}

/** Large numbers in three or four figures. */
export function short(value) {
  const known = number(value);
  if (known === null) return DASH;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (known >= size) return `${digits(known / (unit === "k" ? 1e3 : size))} ${unit}`;
  }
  return known.toLocaleString("en");
}

/** MiB. */
export function memory(mib) {
  const known = number(mib);
  if (known === null) return DASH;
  return known >= 1024 ? `${digits(known / 1024)} GiB` : `${Math.round(known)} MiB`;
}

export function bytes(value) {
  const known = number(value);
  if (known === null) return DASH;
  return known < 1 << 20 ? `${Math.ceil(known / 1024)} KiB` : memory(known / (1 << 20));
}

function digits(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

export function percent(share) {
  return number(share) === null ? DASH : `${Math.round(share * 100)} %`;
}

export function watts(value) {
  return number(value) === null ? DASH : `${count(Math.round(value))} W`;
}

/** Seconds, in at most two units. */
export function span(seconds) {
  const known = number(seconds);
  if (known === null) return DASH;
  if (known < 60) return `${Math.floor(known)} s`;
  const minutes = Math.floor(known / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function seconds(value) {
  return number(value) === null ? DASH : `${value.toFixed(1)} s`;
}

export function millis(value) {
  const known = number(value);
  if (known === null) return DASH;
  return known >= 1000 ? `${(known / 1000).toFixed(1)} s` : `${Math.round(known)} ms`;
}

/** A time of day, of Unix seconds. */
export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

export function moment(unix) {
  return new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export function plural(n, one, many) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
