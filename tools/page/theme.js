// SPDX-License-Identifier: Apache-2.0

// Colours, and the page in dark or light: as the system has it until the reader chooses.

export function rgbOf(hue, saturation, lightness) {
  const a = saturation * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

export function css([r, g, b]) {
  return `rgb(${r},${g},${b})`;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// Pages that are opened as files may have no storage.
function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The choice is forgotten.
  }
}

// Without a name: the reader's choice of before, otherwise the system's.
export function setTheme(name) {
  if (name) store("arbalest-theme", name);
  const chosen = name ?? stored("arbalest-theme");
  document.documentElement.dataset.theme = chosen === "dark" || (chosen !== "light" && isDark()) ? "dark" : "light";
}
