// How numbers and times read. Non-finite numbers arrive as their names, and stay that.

const NS_PER_S = 1e9;

function threeDigits(amount) {
  return amount.toFixed(amount < 10 ? 2 : amount < 100 ? 1 : 0);
}

/** A duration with its unit: `850 µs`, `12.3 ms`, `4.50 s`, `3m 20s`, `2h 05m`. */
function formatDuration(durationNs) {
  if (typeof durationNs !== 'number') return '–';
  const seconds = durationNs / NS_PER_S;
  const size = Math.abs(seconds);
  if (size === 0) return '0 s';
  if (size < 1e-6) return `${Math.round(durationNs)} ns`;
  if (size < 1e-3) return `${threeDigits(seconds * 1e6)} µs`;
  if (size < 1) return `${threeDigits(seconds * 1e3)} ms`;
  if (size < 60) return `${threeDigits(seconds)} s`;
  const whole = Math.round(seconds);
  const two = (part) => String(part).padStart(2, '0');
  if (size < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (size < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

/** A moment of the run, with as many decimals as tell it from one that is `resolutionNs` later. */
function formatMoment(timeNs, resolutionNs) {
  const [unit, factor] = [['s', NS_PER_S], ['ms', 1e6], ['µs', 1e3]].find(([, each]) => Math.abs(timeNs) >= each) ?? ['ns', 1];
  if (Math.abs(timeNs) >= 60 * NS_PER_S && resolutionNs >= NS_PER_S) return formatDuration(timeNs);
  const decimals = Math.min(9, Math.max(0, Math.ceil(-Math.log10(Math.max(1, resolutionNs) / factor))));
  return `${(timeNs / factor).toFixed(unit === 'ns' ? 0 : decimals)} ${unit}`;
}

/** A number with the digits that matter. */
function formatNumber(value) {
  if (typeof value !== 'number') return String(value ?? '–');
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

function formatBytes(size) {
  if (typeof size !== 'number') return String(size ?? '–');
  let amount = size;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (Math.abs(amount) < 1024) return unit === 'B' ? `${amount} B` : `${threeDigits(amount)} ${unit}`;
    amount /= 1024;
  }
  return `${threeDigits(amount)} TiB`;
}

function formatShare(share) {
  return typeof share === 'number' ? `${Number((share * 100).toPrecision(3))} %` : String(share ?? '–');
}

function formatCount(count, noun) {
  return `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
}

function formatTime(unixMs) {
  return new Date(unixMs).toISOString().replace('T', ' ').replace(/\.\d+Z$/, ' UTC');
}
