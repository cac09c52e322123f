// What is wrong with a page, seen from inside it. A check returns a line for each fault, and none if all is well.
({
  name(element) {
    const id = element.id ? `#${element.id}` : "";
    const classes = [...element.classList].map(name => `.${name}`).join("");
    const words = (element.getAttribute("aria-label") || element.textContent || "").trim().replace(/\s+/g, " ");
    return `<${element.localName}${id}${classes}> “${words.slice(0, 50)}”`;
  },

  shown(element) {
    const visible = { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true };
    return element.checkVisibility(visible) && [...element.getClientRects()].some(box => box.width > 0 && box.height > 0);
  },

  inWindow(element) {
    const box = element.getBoundingClientRect();
    return this.shown(element) && box.top > -2 && box.top < innerHeight && box.left < innerWidth && box.right > 0;
  },

  // A picture taken at once after a change of the window's size can lack what scrolls by itself.
  async drawn() {
    for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
  },

  async comesIntoWindow(element) {
    for (let frame = 0; frame < 60 && !this.inWindow(element); frame++) await new Promise(requestAnimationFrame);
    return this.inWindow(element);
  },

  // Whether a point of it is in the window and nothing else covers that point.
  uncovered(element) {
    return [...element.getClientRects()].some(box => {
      const [left, right] = [Math.max(box.left, 0), Math.min(box.right, innerWidth)];
      const [top, bottom] = [Math.max(box.top, 0), Math.min(box.bottom, innerHeight)];
      return left < right && top < bottom && [0.1, 0.5, 0.9].some(x => [0.1, 0.5, 0.9].some(y => {
        const hit = document.elementFromPoint(left + x * (right - left), top + y * (bottom - top));
        return hit !== null && element.contains(hit);
      }));
    });
  },

  openFolds() {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  },

  headings() {
    const wrong = [];
    const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")];
    const first = headings.filter(heading => heading.localName === "h1").length;
    if (first !== 1) wrong.push(`${first} headings of level 1`);
    let before = 0;
    for (const heading of headings) {
      const level = Number(heading.localName[1]);
      if (level > before + 1) wrong.push(`${this.name(heading)} follows a heading of level ${before}`);
      if (!heading.textContent.trim()) wrong.push(`${this.name(heading)} is empty`);
      before = level;
    }
    return wrong;
  },

  tables() {
    const wrong = [];
    for (const table of document.querySelectorAll("table")) {
      const cells = [...table.querySelectorAll("th")];
      if (!cells.length) wrong.push(`${this.name(table)} has no header cell`);
      for (const cell of cells)
        if (!["row", "col", "rowgroup", "colgroup"].includes(cell.getAttribute("scope")))
          wrong.push(`${this.name(cell)} has no scope`);
    }
    return wrong;
  },

  references() {
    const wrong = [];
    const ids = new Set();
    for (const element of document.querySelectorAll("[id]")) {
      if (ids.has(element.id)) wrong.push(`the id ${element.id} stands twice`);
      ids.add(element.id);
    }
    for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls", "for"])
      for (const element of document.querySelectorAll(`[${attribute}]`))
        for (const id of element.getAttribute(attribute).split(/\s+/))
          if (!ids.has(id)) wrong.push(`${this.name(element)}: ${attribute} names ${id}, which is not there`);
    return wrong;
  },

  // Each link inside the page, clicked on the page as it was opened: what it leads to comes into view.
  async links() {
    const wrong = [];
    const folds = [...document.querySelectorAll("details")];
    const before = folds.map(fold => fold.open);
    const clicked = new Set();
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      const href = link.getAttribute("href");
      if (clicked.has(href)) continue;
      clicked.add(href);
      folds.forEach((fold, i) => { fold.open = before[i] || fold.contains(link); });
      scrollTo(0, document.documentElement.scrollHeight);
      // An SVG's link has no click().
      link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
      const target = document.getElementById(decodeURIComponent(href.slice(1)));
      if (target === null) {
        wrong.push(`${this.name(link)} leads to ${href}, which is not there`);
        continue;
      }
      if (!(await this.comesIntoWindow(target))) wrong.push(`${this.name(link)} leads to ${href}, which cannot be seen then`);
    }
    return wrong;
  },

  // How many elements Tab has to reach.
  stops() {
    const may = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];
    window.stops = may.filter(element => element.tabIndex >= 0 && !element.disabled && this.shown(element));
    window.reached = new Set();
    return window.stops.length;
  },

  // What is wrong where the focus is; null at the end of the page.
  stop() {
    const at = document.activeElement;
    if (at === null || at === document.body || at === document.documentElement || window.reached.has(at)) return null;
    window.reached.add(at);
    const wrong = [];
    const style = getComputedStyle(at);
    const width = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    if (width < 2 || /, 0\)$|transparent/.test(style.outlineColor)) wrong.push(`${this.name(at)} has no focus ring`);
    else if (this.ringSides(at, parseFloat(style.outlineOffset) + width / 2) < 2)
      wrong.push(`${this.name(at)}: what holds it cuts its focus ring off`);
    if (!this.uncovered(at)) wrong.push(`${this.name(at)} cannot be seen when it has the focus`);
    return wrong;
  },

  // How many sides of the ring around an element no box that holds it cuts off.
  ringSides(element, distance) {
    const box = element.getBoundingClientRect();
    const sides = { left: -1, top: -1, right: 1, bottom: 1 };
    return Object.entries(sides).filter(([side, sign]) => {
      const ring = box[side] + sign * distance;
      for (let holder = element.parentElement; holder !== null; holder = holder.parentElement) {
        if (getComputedStyle(holder).overflow === "visible" || holder === document.documentElement) continue;
        if (sign * (ring - holder.getBoundingClientRect()[side]) > 0) return false;
      }
      return true;
    }).length;
  },

  // Close all folds but those that hold this one, and give it the focus. False if there are no more.
  focusFold(index) {
    const folds = [...document.querySelectorAll("details")];
    if (index >= folds.length) return false;
    for (const fold of folds) fold.open = fold !== folds[index] && fold.contains(folds[index]);
    folds[index].querySelector("summary").focus();
    return true;
  },

  focusedFoldIsOpen() {
    return document.activeElement.closest("details").open;
  },

  unreached() {
    return window.stops.filter(stop => !window.reached.has(stop)).map(stop => `Tab does not reach ${this.name(stop)}`);
  },

  // After a jump and Tab: whether the focus is in the element that the address names or after it, if it can be there.
  focusIsAtTarget() {
    const target = document.getElementById(location.hash.slice(1));
    if (target === null) return false;
    const follows = element => Boolean(target.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING);
    this.stops();
    return follows(document.activeElement) || !window.stops.some(follows);
  },

  lines(element) {
    return element.innerText.split("\n").map(line => line.trim()).filter(Boolean);
  },

  texts() {
    this.openFolds();
    return this.lines(document.body);
  },

  // Of what is hidden as long as no script runs: the texts of what is of no use without one.
  controls() {
    const hidden = [...document.querySelectorAll("[hidden]")].filter(element => element.querySelector("input, button"));
    for (const element of hidden) element.hidden = false;
    return hidden.flatMap(element => this.lines(element));
  },

  // What reaches over the right edge of the page and is in no box that scrolls or cuts it off.
  beyond(edge) {
    const holder = element => getComputedStyle(element).position === "absolute" ? element.offsetParent : element.parentElement;
    const held = element => {
      for (let at = holder(element); at && at !== document.body; at = holder(at))
        if (getComputedStyle(at).overflowX !== "visible") return true;
      return false;
    };
    return [...document.body.querySelectorAll("*")].filter(element =>
      element.getBoundingClientRect().right > edge + 1 && !element.closest("svg *") && this.shown(element) && !held(element));
  },

  overflow() {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const wide = this.beyond(root.clientWidth).slice(0, 4).map(element => this.name(element));
    return [`${root.scrollWidth} px wide in ${root.clientWidth} px: ${wide.join(", ")}`];
  },

  // Look at the page while it is laid out for paper, which is when `print` begins to match.
  watchPrinting() {
    window.onPaper = ["was not laid out for paper"];
    matchMedia("print").addEventListener("change", event => { if (event.matches) window.onPaper = this.onPaper(); });
  },

  // What a fold holds is shown, and nothing is cut off, at the edge of a box or of the paper.
  onPaper() {
    const wrong = [];
    for (const fold of document.querySelectorAll("details"))
      for (const child of fold.children)
        if (child.localName !== "summary" && child.textContent.trim() && !this.shown(child))
          wrong.push(`in a closed fold: ${this.name(child)}`);
    for (const box of document.body.querySelectorAll("*")) {
      const forReadersOnly = box.clientWidth <= 1;
      if (box.closest("svg") || forReadersOnly || getComputedStyle(box).overflowX === "visible") continue;
      if (box.scrollWidth > box.clientWidth + 1) wrong.push(`${this.name(box)} shows ${box.clientWidth} of ${box.scrollWidth} px`);
    }
    const edge = document.documentElement.clientWidth;
    for (const element of this.beyond(edge).slice(0, 20))
      wrong.push(`reaches ${Math.round(element.getBoundingClientRect().right - edge)} px over the edge: ${this.name(element)}`);
    return wrong;
  },

  // Elements and attributes that none of our pages has, and characters that hide or reorder what is shown.
  injected() {
    const wrong = [];
    const foreign = "img, iframe, object, embed, form, base, audio, video, meta[http-equiv=refresh], svg script, [autofocus]";
    for (const element of document.querySelectorAll(foreign)) wrong.push(`${this.name(element)} does not belong here`);
    const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff]/;
    for (const element of document.querySelectorAll("*"))
      for (const { name, value } of element.attributes) {
        if (name.startsWith("on")) wrong.push(`${this.name(element)} has the attribute ${name}`);
        if (hidden.test(value)) wrong.push(`${this.name(element)} has hidden characters in ${name}`);
        if (/^(href|src|action)$/.test(name) && /^\s*(javascript|vbscript):|^\s*data:text/i.test(value))
          wrong.push(`${this.name(element)} leads to ${value.slice(0, 40)}`);
      }
    const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
      if (hidden.test(texts.currentNode.data) && !texts.currentNode.parentElement.matches("script, style"))
        wrong.push(`${this.name(texts.currentNode.parentElement)} has hidden characters`);
    return wrong;
  },

  opened() {
    return performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd;
  },

  // How light the page's ground is, from 0 to 1.
  lightness() {
    const parts = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g).map(Number);
    return (parts[0] + parts[1] + parts[2]) / 765;
  },

  // Of texts of one colour and size on one ground, one: axe needs milliseconds for each, and a page has thousands.
  kindsOfText() {
    const grounds = new Map([[null, ""]]);
    const ground = element => {
      if (!grounds.has(element)) {
        const { backgroundColor, backgroundImage, opacity } = getComputedStyle(element);
        const plain = /, 0\)$/.test(backgroundColor) && backgroundImage === "none" && opacity === "1";
        grounds.set(element, ground(element.parentElement) + (plain ? "" : `|${backgroundColor}${backgroundImage}${opacity}`));
      }
      return grounds.get(element);
    };
    const kinds = new Map();
    for (const element of document.body.querySelectorAll("*")) {
      if (![...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())) continue;
      if (!this.shown(element)) continue;
      const { color, fontSize, fontWeight } = getComputedStyle(element);
      const kind = `${element.localName}.${element.className}|${color}|${fontSize}|${fontWeight}${ground(element)}`;
      if (!kinds.has(kind)) kinds.set(kind, element);
    }
    return [...kinds.values()];
  },

  async axe({ tags, contrastAlone }) {
    this.openFolds();
    for (const element of this.kindsOfText()) element.setAttribute("data-kind", "");
    axe.configure({ rules: [{ id: "color-contrast", selector: "[data-kind]" }] });
    const runOnly = contrastAlone ? ["color-contrast"] : { type: "tag", values: tags };
    const { violations } = await axe.run(document, { runOnly, resultTypes: ["violations"], preload: false });
    return violations.flatMap(({ id, nodes }) => nodes.map(node =>
      `${id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\s+/g, " ")} ${node.html.slice(0, 120)}`));
  },
})
