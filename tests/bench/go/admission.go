package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The shapes of k8s.io/api/admission/v1 and of a core/v1 Pod as a webhook decodes it.

type groupVersion struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Kind     string `json:"kind,omitempty"`
	Resource string `json:"resource,omitempty"`
}

type admissionReview struct {
	APIVersion string             `json:"apiVersion,omitempty"`
	Kind       string             `json:"kind,omitempty"`
	Request    *admissionRequest  `json:"request,omitempty"`
	Response   *admissionResponse `json:"response,omitempty"`
}

type admissionRequest struct {
	UID             string        `json:"uid"`
	Kind            groupVersion  `json:"kind"`
	Resource        groupVersion  `json:"resource"`
	SubResource     string        `json:"subResource,omitempty"`
	RequestKind     *groupVersion `json:"requestKind,omitempty"`
	RequestResource *groupVersion `json:"requestResource,omitempty"`
	Name            string        `json:"name,omitempty"`
	Namespace       string        `json:"namespace,omitempty"`
	Operation       string        `json:"operation"`
	UserInfo        struct {
		Username string              `json:"username,omitempty"`
		UID      string              `json:"uid,omitempty"`
		Groups   []string            `json:"groups,omitempty"`
		Extra    map[string][]string `json:"extra,omitempty"`
	} `json:"userInfo"`
	Object    json.RawMessage `json:"object,omitempty"`
	OldObject json.RawMessage `json:"oldObject,omitempty"`
	DryRun    *bool           `json:"dryRun,omitempty"`
	Options   json.RawMessage `json:"options,omitempty"`
}

type admissionResponse struct {
	UID              string            `json:"uid"`
	Allowed          bool              `json:"allowed"`
	Status           *status           `json:"status,omitempty"`
	Patch            []byte            `json:"patch,omitempty"`
	PatchType        string            `json:"patchType,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

type status struct {
	Status  string `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Code    int32  `json:"code,omitempty"`
}

type keySelector struct {
	Name     string `json:"name,omitempty"`
	Key      string `json:"key"`
	Optional *bool  `json:"optional,omitempty"`
}

type fieldRef struct {
	APIVersion string `json:"apiVersion,omitempty"`
	FieldPath  string `json:"fieldPath"`
}

type envSource struct {
	FieldRef        *fieldRef    `json:"fieldRef,omitempty"`
	ConfigMapKeyRef *keySelector `json:"configMapKeyRef,omitempty"`
	SecretKeyRef    *keySelector `json:"secretKeyRef,omitempty"`
}

type envVar struct {
	Name      string     `json:"name"`
	Value     string     `json:"value,omitempty"`
	ValueFrom *envSource `json:"valueFrom,omitempty"`
}

// intOrString, quantity: as k8s.io/apimachinery has them, a type that reads itself.
type intOrString struct {
	Number int32
	Text   string
}

func (v *intOrString) UnmarshalJSON(value []byte) error {
	if value[0] == '"' {
		return json.Unmarshal(value, &v.Text)
	}
	return json.Unmarshal(value, &v.Number)
}

type quantity struct {
	value  int64
	suffix string
	text   string
}

func (q *quantity) UnmarshalJSON(value []byte) (err error) {
	q.text = strings.Trim(string(value), `"`)
	digits := strings.TrimRight(q.text, "numkKMGTPEi")
	q.suffix = q.text[len(digits):]
	q.value, err = strconv.ParseInt(digits, 10, 64)
	return err
}

type keyToPath struct {
	Key  string `json:"key"`
	Path string `json:"path"`
	Mode *int32 `json:"mode,omitempty"`
}

type volume struct {
	Name     string `json:"name"`
	HostPath *struct {
		Path string  `json:"path"`
		Type *string `json:"type,omitempty"`
	} `json:"hostPath,omitempty"`
	EmptyDir *struct {
		Medium    string    `json:"medium,omitempty"`
		SizeLimit *quantity `json:"sizeLimit,omitempty"`
	} `json:"emptyDir,omitempty"`
	PersistentVolumeClaim *struct {
		ClaimName string `json:"claimName"`
		ReadOnly  bool   `json:"readOnly,omitempty"`
	} `json:"persistentVolumeClaim,omitempty"`
	ConfigMap *struct {
		Name        string      `json:"name,omitempty"`
		Items       []keyToPath `json:"items,omitempty"`
		DefaultMode *int32      `json:"defaultMode,omitempty"`
	} `json:"configMap,omitempty"`
	Projected *struct {
		Sources []struct {
			ServiceAccountToken *struct {
				Audience          string `json:"audience,omitempty"`
				ExpirationSeconds *int64 `json:"expirationSeconds,omitempty"`
				Path              string `json:"path"`
			} `json:"serviceAccountToken,omitempty"`
			ConfigMap *struct {
				Name  string      `json:"name,omitempty"`
				Items []keyToPath `json:"items,omitempty"`
			} `json:"configMap,omitempty"`
			DownwardAPI *struct {
				Items []struct {
					Path     string    `json:"path"`
					FieldRef *fieldRef `json:"fieldRef,omitempty"`
				} `json:"items,omitempty"`
			} `json:"downwardAPI,omitempty"`
		} `json:"sources,omitempty"`
		DefaultMode *int32 `json:"defaultMode,omitempty"`
	} `json:"projected,omitempty"`
}

type probe struct {
	HTTPGet *struct {
		Path   string      `json:"path,omitempty"`
		Port   intOrString `json:"port"`
		Scheme string      `json:"scheme,omitempty"`
	} `json:"httpGet,omitempty"`
	TimeoutSeconds   int32 `json:"timeoutSeconds,omitempty"`
	PeriodSeconds    int32 `json:"periodSeconds,omitempty"`
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

type admittedContainer struct {
	Name    string   `json:"name"`
	Image   string   `json:"image,omitempty"`
	Command []string `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Ports   []struct {
		Name          string `json:"name,omitempty"`
		ContainerPort int32  `json:"containerPort"`
		Protocol      string `json:"protocol,omitempty"`
	} `json:"ports,omitempty"`
	EnvFrom []struct {
		Prefix string `json:"prefix,omitempty"`
	} `json:"envFrom,omitempty"`
	Env       []envVar `json:"env,omitempty"`
	Resources struct {
		Limits   map[string]quantity `json:"limits,omitempty"`
		Requests map[string]quantity `json:"requests,omitempty"`
		Claims   []struct {
			Name string `json:"name"`
		} `json:"claims,omitempty"`
	} `json:"resources,omitempty"`
	RestartPolicy *string `json:"restartPolicy,omitempty"`
	VolumeMounts  []struct {
		Name      string `json:"name"`
		ReadOnly  bool   `json:"readOnly,omitempty"`
		MountPath string `json:"mountPath"`
		SubPath   string `json:"subPath,omitempty"`
	} `json:"volumeMounts,omitempty"`
	LivenessProbe            *probe `json:"livenessProbe,omitempty"`
	ReadinessProbe           *probe `json:"readinessProbe,omitempty"`
	TerminationMessagePath   string `json:"terminationMessagePath,omitempty"`
	TerminationMessagePolicy string `json:"terminationMessagePolicy,omitempty"`
	ImagePullPolicy          string `json:"imagePullPolicy,omitempty"`
	SecurityContext          *struct {
		Privileged               *bool `json:"privileged,omitempty"`
		AllowPrivilegeEscalation *bool `json:"allowPrivilegeEscalation,omitempty"`
		Capabilities             *struct {
			Add  []string `json:"add,omitempty"`
			Drop []string `json:"drop,omitempty"`
		} `json:"capabilities,omitempty"`
	} `json:"securityContext,omitempty"`
}

type toleration struct {
	Key               string `json:"key,omitempty"`
	Operator          string `json:"operator,omitempty"`
	Value             string `json:"value,omitempty"`
	Effect            string `json:"effect,omitempty"`
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

type admittedPod struct {
	Metadata struct {
		objectMeta
		OwnerReferences []struct {
			APIVersion         string `json:"apiVersion"`
			Kind               string `json:"kind"`
			Name               string `json:"name"`
			UID                string `json:"uid"`
			Controller         *bool  `json:"controller,omitempty"`
			BlockOwnerDeletion *bool  `json:"blockOwnerDeletion,omitempty"`
		} `json:"ownerReferences,omitempty"`
		ManagedFields []struct {
			Manager    string          `json:"manager,omitempty"`
			Operation  string          `json:"operation,omitempty"`
			APIVersion string          `json:"apiVersion,omitempty"`
			Time       *time.Time      `json:"time,omitempty"`
			FieldsType string          `json:"fieldsType,omitempty"`
			FieldsV1   json.RawMessage `json:"fieldsV1,omitempty"`
		} `json:"managedFields,omitempty"`
	} `json:"metadata,omitempty"`
	Spec struct {
		Volumes            []volume            `json:"volumes,omitempty"`
		InitContainers     []admittedContainer `json:"initContainers,omitempty"`
		Containers         []admittedContainer `json:"containers"`
		RestartPolicy      string              `json:"restartPolicy,omitempty"`
		DNSPolicy          string              `json:"dnsPolicy,omitempty"`
		NodeSelector       map[string]string   `json:"nodeSelector,omitempty"`
		ServiceAccountName string              `json:"serviceAccountName,omitempty"`
		NodeName           string              `json:"nodeName,omitempty"`
		HostPID            bool                `json:"hostPID,omitempty"`
		SchedulerName      string              `json:"schedulerName,omitempty"`
		Tolerations        []toleration        `json:"tolerations,omitempty"`
		Priority           *int32              `json:"priority,omitempty"`
		PreemptionPolicy   *string             `json:"preemptionPolicy,omitempty"`
		EnableServiceLinks *bool               `json:"enableServiceLinks,omitempty"`
		GraceSeconds       *int64              `json:"terminationGracePeriodSeconds,omitempty"`
		ServiceAccount     string              `json:"serviceAccount,omitempty"`
		SecurityContext    *struct {
			FSGroup      *int64 `json:"fsGroup,omitempty"`
			RunAsNonRoot *bool  `json:"runAsNonRoot,omitempty"`
		} `json:"securityContext,omitempty"`
		RuntimeClassName *string `json:"runtimeClassName,omitempty"`
		ResourceClaims   []struct {
			Name string `json:"name"`
		} `json:"resourceClaims,omitempty"`
	} `json:"spec,omitempty"`
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const (
	assignedPath = "metadata.annotations['gpuwarden.dev/gpu-uuids-assigned']"
	ourTaint     = "gpuwarden.dev/managed"
	ourScheduler = "gpuwarden"
	cuda         = "CUDA_VISIBLE_DEVICES"
	nvidia       = "NVIDIA_VISIBLE_DEVICES"
	managed      = "nvidia.com/gpu"
)

var (
	deviceVariables = map[string]bool{
		nvidia: true, "DOCKER_RESOURCE_GPU": true, "NVIDIA_IMEX_CHANNELS": true,
		"NVIDIA_MIG_CONFIG_DEVICES": true, "NVIDIA_MIG_MONITOR_DEVICES": true, "NVIDIA_NVSWITCH": true,
	}
	devicePrefixes = []string{
		"cdi.k8s.io/", "nvidia.cdi.k8s.io", "cdi-devices.nri.io", "cdi-devices.noderesource.dev",
		"cdi.nri.io", "devices.nri.io", "devices.noderesource.dev", "devices.gke.io", "mounts.nri.io",
		"mounts.noderesource.dev", "io.kubernetes.cri-o.Devices", "devices.crio.io",
		"io.kubernetes.cri-o.PlatformRuntimePath", "platform-runtime-path.crio.io",
		"org.systemd.property.",
	}
	strong = map[string]bool{
		"ALL": true, "SYS_ADMIN": true, "SYS_RAWIO": true, "SYS_MODULE": true, "BPF": true,
		"SYS_BOOT": true, "DAC_READ_SEARCH": true,
	}
)

func (p *admittedPod) all(visit func(field string, index int, c *admittedContainer)) {
	for index := range p.Spec.InitContainers {
		visit("initContainers", index, &p.Spec.InitContainers[index])
	}
	for index := range p.Spec.Containers {
		visit("containers", index, &p.Spec.Containers[index])
	}
}

// asksUs says whether the pod's GPUs come from us; requests whether kubelet gives it any.
func (p *admittedPod) asksUs() (asks, requests bool) {
	for key := range p.Metadata.Annotations {
		if strings.HasPrefix(key, "gpuwarden.dev/gpu-") {
			asks = true
		}
	}
	p.all(func(_ string, _ int, c *admittedContainer) {
		if _, found := c.Resources.Limits[managed]; found || len(c.Resources.Claims) > 0 {
			requests = true
		}
	})
	return asks && !requests, requests
}

func ours(entry *envVar) bool {
	from := entry.ValueFrom
	return from != nil && from.FieldRef != nil && from.FieldRef.FieldPath == assignedPath
}

func missing(p *admittedPod) []operation {
	asks, _ := p.asksUs()
	var found []operation
	p.all(func(field string, index int, c *admittedContainer) {
		path := fmt.Sprintf("/spec/%s/%d/env", field, index)
		wanted := map[string]any{
			"valueFrom": map[string]any{
				"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": assignedPath},
			},
		}
		names := []string{cuda, nvidia}
		if !asks {
			names, wanted = []string{nvidia}, map[string]any{"value": "void"}
		}
		for _, name := range names {
			at := -1
			for place := range c.Env {
				if c.Env[place].Name == name {
					at = place
				}
			}
			value := map[string]any{"name": name}
			for key, what := range wanted {
				value[key] = what
			}
			switch {
			case at < 0 && len(c.Env) == 0:
				found = append(found, operation{"add", path, []any{value}})
			case at < 0:
				found = append(found, operation{"add", path + "/-", value})
			case asks && !ours(&c.Env[at]):
				found = append(found, operation{"replace", fmt.Sprintf("%s/%d", path, at), value})
			}
		}
	})
	if p.Spec.SchedulerName != ourScheduler {
		found = append(found, operation{"add", "/spec/schedulerName", ourScheduler})
	}
	for _, one := range p.Spec.Tolerations {
		if one.Key == ourTaint && one.Operator == "Exists" {
			return found
		}
	}
	tolerated := toleration{Key: ourTaint, Operator: "Exists", Effect: "NoExecute"}
	if len(p.Spec.Tolerations) == 0 {
		return append(found, operation{"add", "/spec/tolerations", []toleration{tolerated}})
	}
	return append(found, operation{"add", "/spec/tolerations/-", tolerated})
}

func violations(p *admittedPod) []string {
	var found []string
	shut := func(code, text string, values ...any) {
		found = append(found, "gpuwarden: "+code+" "+fmt.Sprintf(text, values...))
	}
	p.all(func(_ string, _ int, c *admittedContainer) {
		for index := range c.Env {
			entry := &c.Env[index]
			if !deviceVariables[entry.Name] || ours(entry) {
				continue
			}
			if entry.ValueFrom != nil || (entry.Value != "" && entry.Value != "void" && entry.Value != "none") {
				shut("BYPASS_ENV", "container %s sets %s", c.Name, entry.Name)
			}
		}
		for _, mount := range c.VolumeMounts {
			if strings.HasPrefix(mount.MountPath, "/var/run/nvidia-container-devices") {
				shut("BYPASS_DEVICE_LIST", "container %s mounts %s", c.Name, mount.MountPath)
			}
		}
		if context := c.SecurityContext; context != nil {
			if context.Privileged != nil && *context.Privileged {
				shut("BYPASS_PRIVILEGED", "container %s is privileged", c.Name)
			}
			if context.Capabilities != nil {
				for _, name := range context.Capabilities.Add {
					if strong[strings.TrimPrefix(strings.ToUpper(name), "CAP_")] {
						shut("BYPASS_PRIVILEGED", "container %s adds %s", c.Name, name)
					}
				}
			}
		}
	})
	for key := range p.Metadata.Annotations {
		for _, prefix := range devicePrefixes {
			if strings.HasPrefix(key, prefix) {
				shut("BYPASS_CDI", "annotation %s", key)
			}
		}
	}
	for _, volume := range p.Spec.Volumes {
		if volume.HostPath != nil {
			shut("BYPASS_HOSTPATH", "volume %s is %s", volume.Name, volume.HostPath.Path)
		}
	}
	if p.Spec.HostPID {
		shut("BYPASS_HOST_PID", "hostPID is set")
	}
	if name := p.Spec.SchedulerName; name != ourScheduler && name != "default-scheduler" {
		shut("BYPASS_SCHEDULER", "schedulerName %s", name)
	}
	if p.Spec.NodeName != "" {
		shut("BYPASS_NODE_NAME", "nodeName %s", p.Spec.NodeName)
	}
	if name := p.Spec.RuntimeClassName; name != nil && *name != "nvidia" {
		shut("BYPASS_RUNTIME_CLASS", "runtimeClassName %s", *name)
	}
	if len(p.Spec.ResourceClaims) > 0 {
		shut("BYPASS_CLAIM", "resourceClaims")
	}
	if len(found) == 0 && len(missing(p)) > 0 {
		shut("BYPASS_UNINJECTED", "not as the mutating webhook makes it")
	}
	return found
}

func answering(decide func(*admittedPod, *admissionResponse) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "decode review", http.StatusBadRequest)
			return
		}
		var pod admittedPod
		if err := json.Unmarshal(review.Request.Object, &pod); err != nil {
			http.Error(w, "decode pod", http.StatusBadRequest)
			return
		}
		response := &admissionResponse{UID: review.Request.UID, Allowed: true}
		if err := decide(&pod, response); err != nil {
			http.Error(w, "encode patch", http.StatusInternalServerError)
			return
		}
		answer := admissionReview{APIVersion: review.APIVersion, Kind: review.Kind, Response: response}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&answer); err != nil {
			return
		}
	}
}

func mutate(p *admittedPod, response *admissionResponse) (err error) {
	if patch := missing(p); len(patch) > 0 {
		response.PatchType = "JSONPatch"
		response.Patch, err = json.Marshal(patch)
	}
	return err
}

func validate(p *admittedPod, response *admissionResponse) error {
	if found := violations(p); len(found) > 0 {
		response.Allowed = false
		response.Status = &status{
			Status: "Failure", Message: strings.Join(found, "; "), Reason: "Forbidden", Code: 403,
		}
	}
	return nil
}

func admission(arguments []string) error {
	flags := flag.NewFlagSet("admission", flag.ExitOnError)
	cert := flags.String("cert", "", "PEM certificate")
	key := flags.String("key", "", "PEM key")
	ca := flags.String("ca", "", "PEM of the client CA")
	if err := flags.Parse(arguments); err != nil {
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
	mux.Handle("POST /mutate/pods/enforced", answering(mutate))
	mux.Handle("POST /validate/pods/enforced", answering(validate))
	server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: 5 * time.Second}
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
