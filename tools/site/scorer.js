// Orders the results of the search: pages whose title has the words first, then headings that have them.
// Records of changes and decisions come last.
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    if (/CHANGELOG|README|\/adr\/|\/contributing\/|^examples\//.test(page)) return score / 10;
    const query = new URLSearchParams(window.location.search).get("q") || "";
    // Without their ends, words match their other forms: "retry" and "Retries".
    const stems = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.slice(0, Math.max(4, word.length - 2)));
    const heading = title.split(" > ").pop().toLowerCase();
    const words = heading.split(/[^a-z0-9]+/).filter(Boolean);
    if (!stems.length || !stems.every((stem) => words.some((word) => word.startsWith(stem)))) return score;
    const first = words[0].startsWith(stems[0]) ? 20 : 0;
    const place = anchor ? (page.includes("/reference/") ? 20 : 50) : 100;
    return score + place + first + 10 / words.length;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
