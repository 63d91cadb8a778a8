package main

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"os"
	"time"
)

// The shapes of k8s.io/api as far as a scheduler sends them; no module proxy is needed.

type objectMeta struct {
	Name              string            `json:"name,omitempty"`
	GenerateName      string            `json:"generateName,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreationTimestamp time.Time         `json:"creationTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

type container struct {
	Name      string `json:"name"`
	Image     string `json:"image,omitempty"`
	Resources struct {
		Limits   map[string]string `json:"limits,omitempty"`
		Requests map[string]string `json:"requests,omitempty"`
	} `json:"resources,omitempty"`
}

type pod struct {
	Metadata objectMeta `json:"metadata,omitempty"`
	Spec     struct {
		InitContainers []container       `json:"initContainers,omitempty"`
		Containers     []container       `json:"containers"`
		NodeSelector   map[string]string `json:"nodeSelector,omitempty"`
		SchedulerName  string            `json:"schedulerName,omitempty"`
	} `json:"spec,omitempty"`
}

type node struct {
	Metadata objectMeta `json:"metadata,omitempty"`
	Spec     struct {
		PodCIDR    string   `json:"podCIDR,omitempty"`
		PodCIDRs   []string `json:"podCIDRs,omitempty"`
		ProviderID string   `json:"providerID,omitempty"`
		Taints     []struct {
			Key    string `json:"key"`
			Value  string `json:"value,omitempty"`
			Effect string `json:"effect"`
		} `json:"taints,omitempty"`
	} `json:"spec,omitempty"`
	Status struct {
		Capacity    map[string]string `json:"capacity,omitempty"`
		Allocatable map[string]string `json:"allocatable,omitempty"`
		Conditions  []struct {
			Type               string    `json:"type"`
			Status             string    `json:"status"`
			LastHeartbeatTime  time.Time `json:"lastHeartbeatTime,omitempty"`
			LastTransitionTime time.Time `json:"lastTransitionTime,omitempty"`
			Reason             string    `json:"reason,omitempty"`
			Message            string    `json:"message,omitempty"`
		} `json:"conditions,omitempty"`
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses,omitempty"`
		NodeInfo map[string]string `json:"nodeInfo,omitempty"`
		Images   []struct {
			Names     []string `json:"names"`
			SizeBytes int64    `json:"sizeBytes,omitempty"`
		} `json:"images,omitempty"`
	} `json:"status,omitempty"`
}

type nodeList struct {
	Items []node `json:"items"`
}

type extenderArgs struct {
	Pod       *pod
	Nodes     *nodeList
	NodeNames *[]string
}

type extenderFilterResult struct {
	Nodes                      *nodeList
	NodeNames                  *[]string
	FailedNodes                map[string]string
	FailedAndUnresolvableNodes map[string]string
	Error                      string
}

// standing is what is known of a node.
type standing struct {
	Hash       string    `json:"hash"`
	GPUs       int       `json:"gpus"`
	FreshUntil time.Time `json:"freshUntil"`
	Holders    []string  `json:"holders,omitempty"` // UID of a pod for each GPU that is held
}

type extenderPreemptionArgs struct {
	Pod                   *pod
	NodeNameToMetaVictims map[string]*metaVictims
}

type extenderPreemptionResult struct {
	NodeNameToMetaVictims map[string]*metaVictims
}

type metaVictims struct {
	Pods             []*metaPod
	NumPDBViolations int64
}

type metaPod struct {
	UID string
}

const requiredHash = "gpuwarden.dev/required-hash"

type filter struct {
	fleet map[string]standing
	most  int // reasons in one answer; 0 for all
}

func (f *filter) refusal(name, hash string, now time.Time) string {
	known, ok := f.fleet[name]
	switch {
	case !ok:
		return "gpuwarden: NODE_NO_EVIDENCE: the node has shown no evidence"
	case now.After(known.FreshUntil):
		return "gpuwarden: NODE_STALE: the node's evidence is too old"
	case known.Hash != hash:
		return "gpuwarden: HASH_MISMATCH: the node's attestation hash is not one of those asked for"
	case known.GPUs == 0:
		return "gpuwarden: GPU_NO_MATCH: no GPU of the node fits"
	}
	return ""
}

func (f *filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.Pod == nil {
		http.Error(w, "decode args", http.StatusBadRequest)
		return
	}
	hash, now := args.Pod.Metadata.Annotations[requiredHash], time.Now()
	result := extenderFilterResult{
		FailedNodes:                map[string]string{},
		FailedAndUnresolvableNodes: map[string]string{},
	}
	reject := func(name, why string) {
		if f.most == 0 || len(result.FailedAndUnresolvableNodes) < f.most {
			result.FailedAndUnresolvableNodes[name] = why
		}
	}
	if args.NodeNames != nil {
		passed := make([]string, 0)
		for _, name := range *args.NodeNames {
			if why := f.refusal(name, hash, now); why != "" {
				reject(name, why)
			} else {
				passed = append(passed, name)
			}
		}
		result.NodeNames = &passed
	} else if args.Nodes != nil {
		passed := nodeList{Items: make([]node, 0)}
		for _, one := range args.Nodes.Items {
			if why := f.refusal(one.Metadata.Name, hash, now); why != "" {
				reject(one.Metadata.Name, why)
			} else {
				passed.Items = append(passed.Items, one)
			}
		}
		result.Nodes = &passed
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(&result); err != nil {
		return
	}
}

// preempt keeps the nodes that would pass once their victims are gone.
func (f *filter) preempt(w http.ResponseWriter, r *http.Request) {
	var args extenderPreemptionArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.Pod == nil {
		http.Error(w, "decode args", http.StatusBadRequest)
		return
	}
	hash, now := args.Pod.Metadata.Annotations[requiredHash], time.Now()
	result := extenderPreemptionResult{NodeNameToMetaVictims: map[string]*metaVictims{}}
	for name, victims := range args.NodeNameToMetaVictims {
		if f.refusal(name, hash, now) == "" && frees(victims, f.fleet[name].Holders) {
			result.NodeNameToMetaVictims[name] = victims
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(&result); err != nil {
		return
	}
}

func frees(victims *metaVictims, holders []string) bool {
	gone := make(map[string]struct{}, len(victims.Pods))
	for _, one := range victims.Pods {
		gone[one.UID] = struct{}{}
	}
	for _, holder := range holders {
		if _, ok := gone[holder]; !ok {
			return false
		}
	}
	return true
}

func extender(arguments []string) error {
	flags := flag.NewFlagSet("extender", flag.ExitOnError)
	cert := flags.String("cert", "", "PEM certificate")
	key := flags.String("key", "", "PEM key")
	ca := flags.String("ca", "", "PEM of the client CA")
	fleetFile := flags.String("fleet", "", "JSON: name -> standing")
	most := flags.Int("reasons", 0, "reasons in one answer, 0 for all")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	text, err := os.ReadFile(*fleetFile)
	if err != nil {
		return err
	}
	f := &filter{most: *most}
	if err := json.Unmarshal(text, &f.fleet); err != nil {
		return err
	}
	config, err := serverTLS(*cert, *key, *ca)
	if err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /filter", f)
	mux.HandleFunc("POST /preempt", f.preempt)
	server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: 5 * time.Second}
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
