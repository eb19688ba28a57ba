"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  root.classList.add("scripted");

  // Light and dark: the system decides until the reader does.
  const theme = $("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colors`);
  };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // The table: rows are put into the page as they are asked for.
  const FEW = 100;
  const body = $("scalars").tBodies[0];
  const heads = [...$("scalars").tHead.rows[0].cells];
  const waiting = $("rest").content.querySelectorAll("tr");
  const rows = [...body.rows, ...waiting].map((row, place) => ({
    row,
    place,
    name: row.cells[0].querySelector(".name").textContent,
  }));
  const inOrder = new Intl.Collator(undefined, { numeric: true }).compare;
  const state = { column: -1, down: false, limit: FEW };

  const value = (item) => {
    const text = item.row.cells[state.column].textContent.replaceAll("−", "-");
    return parseFloat(text.replace("∞", "Infinity"));
  };
  const sorted = (found) => {
    const sign = state.down ? -1 : 1;
    if (state.column < 0) return found;
    if (state.column === 0) return found.sort((a, b) => sign * inOrder(a.name, b.name));
    const keys = new Map(found.map((item) => [item, value(item)]));
    return found.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      // What is undefined is never good: it stays on top whichever way.
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(y) - Number.isNaN(x) || a.place - b.place;
      return (x === y ? 0 : sign * (x < y ? -1 : 1)) || a.place - b.place;
    });
  };
  const show = () => {
    const wanted = $("filter").value.trim().toLowerCase();
    const found = sorted(rows.filter((item) => item.name.toLowerCase().includes(wanted)));
    const shown = found.slice(0, state.limit);
    body.replaceChildren(...shown.map((item) => item.row));
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const all = `${found.length.toLocaleString("en")} row${found.length === 1 ? "" : "s"}`;
    $("shown").textContent = shown.length < found.length ? `${shown.length} of ${all}` : all;
    $("more").hidden = shown.length === found.length;
    $("more").textContent = `Show all ${all}`;
  };
  heads.forEach((head, i) => {
    head.querySelector("button").addEventListener("click", () => {
      // R-hat is bad when large, everything else is first shown from small to large.
      const first = head.dataset.column === "r_hat";
      state.down = state.column === i ? !state.down : first;
      state.column = i;
      show();
    });
  });
  $("filter").addEventListener("input", show);
  $("worst").addEventListener("click", () => {
    state.column = -1;
    show();
  });
  const withLimit = (limit) => () => {
    state.limit = limit;
    show();
  };
  $("more").addEventListener("click", withLimit(Infinity));
  // Paper has no buttons: print every row.
  let before = FEW;
  addEventListener("beforeprint", () => {
    before = state.limit;
    withLimit(Infinity)();
  });
  addEventListener("afterprint", () => withLimit(before)());
  show();

  // Copy buttons.
  document.querySelectorAll(".copy button").forEach((button) => {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected"; // the reader presses Ctrl-C
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  });
})();
